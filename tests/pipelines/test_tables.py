from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import ParquetSink
from klamm.pipelines.hadoop import Kind, kind_of, local_path
from klamm.pipelines.sinks import tables
from klamm.pipelines.sinks.exchange import ExchangeImpossible, exchange, why_impossible
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.sinks.parquet import ParquetWriter
from klamm.pipelines.sinks.tables import LocalTable, open_table, table_location
from tests.faulty_disk import replace_below


def stage(table: LocalTable, text: str, *below: str) -> str:
    """What Spark would have written: a file of data, its checksum, and a mark that the job is done."""
    staged = Path(table.new_staging("test"))
    folder = staged.joinpath(*below)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text(text)
    (folder / ".part-0.parquet.crc").write_text("checksum")
    (staged / "_SUCCESS").touch()
    return str(staged)


def contents(table: LocalTable) -> dict[str, str]:
    return {
        str(file.relative_to(table.path)): file.read_text()
        for file in sorted(table.path.rglob("*"))
        if file.is_file()
    }


def filled(tmp_path: Path, batches: int) -> LocalTable:
    table = LocalTable(tmp_path / "tables/orders")
    for batch in range(batches):
        table.publish(stage(table, f"rows of {batch}"), BatchFolder.of_batch(1, batch))
    return table


def test_a_published_batch_has_its_data_and_nothing_else(tmp_path: Path) -> None:
    table = LocalTable(tmp_path / "tables/orders")
    staged = stage(table, "rows", "day=2026-01-31")
    assert table.folders() == []
    table.publish(staged, BatchFolder.of_batch(1, 0))
    assert contents(table) == {"batch=1-00000000/day=2026-01-31/part-0.parquet": "rows"}
    assert table.holds(1, 0) and not table.holds(1, 1)


def test_what_is_staged_lies_outside_of_the_table_on_the_same_file_system(tmp_path: Path) -> None:
    table = filled(tmp_path, 1)
    staged = Path(stage(table, "rows"))
    assert not staged.is_relative_to(table.path)
    assert staged.stat().st_dev == table.path.stat().st_dev
    table.clean_up()
    assert not staged.exists() and len(table.folders()) == 1


def test_a_merged_folder_takes_the_place_of_its_parts(tmp_path: Path) -> None:
    table = filled(tmp_path, 5)
    merged = [folder for folder in table.folders() if folder.first < 4]
    table.replace(merged, stage(table, "rows of 0 to 3"), BatchFolder(1, 0, 3))
    assert contents(table) == {
        "batch=1-00000000-00000003.1/part-0.parquet": "rows of 0 to 3",
        "batch=1-00000004.1/part-0.parquet": "rows of 4",
    }
    assert [batch for batch in range(6) if table.holds(1, batch)] == [0, 1, 2, 3, 4]


def test_nothing_of_a_listing_is_found_again_after_an_exchange(tmp_path: Path) -> None:
    """Readers pass over files that went away since they listed a folder: then all of them have to be away."""
    table = filled(tmp_path, 3)
    listed = set(os.listdir(table.path))
    table.replace(table.folders()[:2], stage(table, "rows"), BatchFolder(1, 0, 1))
    assert not listed & set(os.listdir(table.path))
    listed = set(os.listdir(table.path))
    table.publish(stage(table, "more"), BatchFolder.of_batch(1, 3))
    assert listed <= set(os.listdir(table.path)), "publishing takes nothing away"


def test_others_files_stay_in_a_rebuilt_table(tmp_path: Path) -> None:
    table = filled(tmp_path, 2)
    (table.path / "_notes.md").write_text("do not touch")
    table.replace(table.folders(), stage(table, "rows"), BatchFolder(1, 0, 1))
    assert contents(table)["_notes.md"] == "do not touch"


def test_retired_batches_lie_beside_the_table(tmp_path: Path) -> None:
    table = filled(tmp_path, 4)
    gone = table.folders()[2:]
    table.retire(gone, 2)
    assert [folder.first for folder in table.folders()] == [0, 1]
    assert sorted(os.listdir(table.retired(2))) == [folder.name for folder in gone]
    table.retire(gone, 2)  # a second try finds it done
    assert len(table.folders()) == 2


def test_batches_are_retired_also_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, 4)
    monkeypatch.setattr(tables, "why_impossible", lambda folder: "the file system is an old one")
    table.retire(table.folders()[1:], 2)
    assert [folder.name for folder in table.folders()] == ["batch=1-00000000"]


def test_an_exchange_is_one_step_or_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "a").touch()
    if why_impossible(tmp_path) is not None:
        with pytest.raises(ExchangeImpossible):
            exchange(one, other)
        return
    exchange(one, other)
    assert os.listdir(other) == ["a"] and os.listdir(one) == []
    with pytest.raises(FileNotFoundError):
        exchange(one, tmp_path / "missing")


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
    assert isinstance(open_table(None, "/project/tables/orders"), LocalTable)


class OneFile(ParquetWriter):
    """Writes what is no Parquet, and needs no Spark for it."""

    def _write(self, frame: DataFrame, staged: str, records: int) -> int:
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
        LocalTable(tmp_path / "orders"),
        BatchLog(tmp_path / "batches.jsonl"),
        Checkpoint(None, str(checkpoint)),
        attempt=1,
        start={},
        on_rows=lambda batch, rows: None,
    )
    frame: Any = None
    writer(frame, 0)
    before, after = steps[: steps.index("published")], steps[steps.index("published") :]
    assert {str(checkpoint / "offsets/0"), str(checkpoint / "offsets")} <= set(before)
    assert any(step.endswith("part-0.parquet") for step in before)
    assert str(tmp_path / "batches.jsonl") in after
