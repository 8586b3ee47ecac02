from __future__ import annotations

import pytest

from klamm.pipelines.sinks.layout import BatchFolder, parse_folders


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (BatchFolder.of_batch(1, 42), "batch=1-00000042"),
        (BatchFolder(2, 0, 41), "batch=2-00000000-00000041"),
        (BatchFolder(1, 7, 7, 3), "batch=1-00000007.3"),
        (BatchFolder(1, 0, 123456789, 12), "batch=1-00000000-123456789.12"),
    ],
)
def test_a_folder_is_found_again_by_its_name(folder: BatchFolder, name: str) -> None:
    assert folder.name == name
    assert BatchFolder.parse(name) == folder


@pytest.mark.parametrize(
    "name", ["batch=1", "batch=1-42", "batch=x-00000001", "_SUCCESS", "batch=1-00000001.new"]
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert BatchFolder.parse(name) is None


def test_folders_are_in_the_order_in_which_batches_were_made() -> None:
    names = ["batch=2-00000000", "batch=1-00000010", "notes.txt", "batch=1-00000000-00000009.1"]
    assert [folder.name for folder in parse_folders(names)] == [names[3], names[1], names[0]]
