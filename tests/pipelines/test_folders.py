from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import ParquetSink
from klamm.pipelines.locations import Kind, kind_of, local_path, table_location
from klamm.pipelines.sinks.folders import LocalFolders, open_folders
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.sinks.parquet import ParquetWriter
from tests.faulty_disk import replace_below


def stage(folders: LocalFolders, text: str, *below: str) -> str:
    """What Spark would have written: a file of data, its checksum, and a mark that the job is done."""
    staged = Path(folders.new_staging("test"))
    folder = staged.joinpath(*below)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text(text)
    (folder / ".part-0.parquet.crc").write_text("checksum")
    (staged / "_SUCCESS").touch()
    return str(staged)


def contents(folders: LocalFolders) -> dict[str, str]:
    return {
        str(file.relative_to(folders.path)): file.read_text()
        for file in sorted(folders.path.rglob("*"))
        if file.is_file()
    }


def filled(tmp_path: Path, batches: int) -> LocalFolders:
    table = LocalFolders(tmp_path / "tables/orders")
    for batch in range(batches):
        table.publish(stage(table, f"rows of {batch}"), BatchFolder.of_batch(1, batch))
    return table


def test_the_newest_batch_of_an_attempt_is_known(tmp_path: Path) -> None:
    folders = filled(tmp_path, 3)
    folders.publish(stage(folders, "rows"), BatchFolder.of_batch(2, 0))
    # As version 0.1 left it, which merged folders.
    (folders.path / "batch=3-00000000-00000041.3").mkdir()
    assert [folders.last_batch(attempt) for attempt in (1, 2, 3, 4)] == [2, 0, 41, None]


def test_a_published_batch_has_its_data_and_nothing_else(tmp_path: Path) -> None:
    table = LocalFolders(tmp_path / "tables/orders")
    staged = stage(table, "rows", "day=2026-01-31")
    assert table.published() == []
    table.publish(staged, BatchFolder.of_batch(1, 0))
    assert contents(table) == {"batch=1-00000000/day=2026-01-31/part-0.parquet": "rows"}
    assert table.last_batch(1) == 0


def test_what_is_staged_lies_outside_of_the_table_on_the_same_file_system(tmp_path: Path) -> None:
    table = filled(tmp_path, 1)
    staged = Path(stage(table, "rows"))
    assert not staged.is_relative_to(table.path)
    assert staged.stat().st_dev == table.path.stat().st_dev
    table.clean_up()
    assert not staged.exists() and len(table.published()) == 1


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("/data/orders", Kind.LOCAL),
        ("file:///data/orders", Kind.LOCAL),
        ("hdfs://namenode:8020/orders", Kind.FOLDERS),
        ("s3a://bucket/orders", Kind.OBJECTS),
        ("gs://bucket/orders", Kind.OBJECTS),
    ],
)
def test_what_renaming_means_is_told_by_the_scheme(location: str, kind: Kind) -> None:
    assert kind_of(location) is kind
    assert (local_path(location) is None) == (kind is not Kind.LOCAL)


def test_a_table_is_a_name_a_path_or_a_uri() -> None:
    assert table_location("/project/tables", "orders") == "/project/tables/orders"
    assert table_location("/project/tables", "/elsewhere/orders/") == "/elsewhere/orders"
    assert table_location("/project/tables", "file:/project/tables/./orders") == "/project/tables/orders"
    assert table_location("s3a://bucket/tables", "orders") == "s3a://bucket/tables/orders"
    assert table_location("/project/tables", "hdfs://namenode/orders") == "hdfs://namenode/orders"
    assert isinstance(open_folders(None, "/project/tables/orders"), LocalFolders)


class OneFile(ParquetWriter):
    """Writes what is no Parquet, and needs no Spark for it."""

    def _write(self, frame: DataFrame, staged: str) -> int:
        Path(staged).mkdir(parents=True)
        Path(staged, "part-0.parquet").write_bytes(b"rows")
        return 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is synced is seen in /proc")
def test_the_disk_has_what_a_batch_reads_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a machine that fails would have the batch in its table, and plan another one of its number."""
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"orders":{"0":1}}\n')
    steps: list[str] = []
    replace_below(
        tmp_path, monkeypatch, "fsync", lambda number: steps.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    rename = os.rename

    def noted(old: str, new: Path) -> None:
        steps.append("published")
        rename(old, new)

    replace_below(tmp_path, monkeypatch, "rename", noted)
    writer = OneFile(
        ParquetSink("orders"),
        LocalFolders(tmp_path / "orders"),
        Checkpoint(None, str(checkpoint)),
        attempt=1,
        on_rows=lambda batch, rows: None,
    )
    frame: Any = None
    writer(frame, 0)
    before = steps[: steps.index("published")]
    assert {str(checkpoint / "offsets/0"), str(checkpoint / "offsets")} <= set(before)
    assert any(step.endswith("part-0.parquet") for step in before)
