"""Which versions of a table give which files to a stream, and what it refuses."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from pyspark.sql.types import DateType, LongType, StringType, StructType

from klamm.pipelines.tables import appended, source
from klamm.pipelines.tables.appended import CannotRead, Limits, NoTable, Place, TableLog
from klamm.pipelines.tables.files import Store
from klamm.pipelines.tables.reading import grouped, read_files, read_last
from klamm.pipelines.tables.table import Table

SCHEMA = StructType().add("n", LongType())


def append(path: Path, *numbers: int) -> None:
    rows = pa.table({"n": pa.array(numbers, pa.int64())})
    write_deltalake(str(path), rows, mode="append", schema_mode="merge")


def opened(path: Path, *, skips_changes: bool = False) -> TableLog:
    return TableLog(Table(str(path)), skips_changes=skips_changes)


def numbers(path: Path, log: TableLog, start: Place, end: Place) -> list[int]:
    batches = read_files(log.files_between(start, end), str(path), {}, SCHEMA)
    return [number for batch in batches for number in batch["n"].to_pylist()]


def test_a_stream_has_the_snapshot_and_then_each_versions_rows_once(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    append(tmp_path, 3)
    log = opened(tmp_path)
    start = log.first_place("earliest")
    end = log.advance(start, log.newest_version(start))
    assert numbers(tmp_path, log, start, end) in ([1, 2, 3], [3, 1, 2])
    assert (end.version, end.rows) == (2, 3)
    assert log.advance(end, log.newest_version(end)) == end
    append(tmp_path, 4)
    append(tmp_path, 5)
    later = log.advance(end, log.newest_version(end))
    assert sorted(numbers(tmp_path, log, end, later)) == [4, 5]
    # The same places give the same rows to another process, also after the files were merged.
    DeltaTable(str(tmp_path)).optimize.compact()
    again = opened(tmp_path)
    assert Counter(numbers(tmp_path, again, start, end)) == Counter([1, 2, 3])
    assert sorted(numbers(tmp_path, again, end, later)) == [4, 5]


def test_latest_begins_after_what_is_there(tmp_path: Path) -> None:
    append(tmp_path, 1)
    log = opened(tmp_path)
    start = log.first_place("latest")
    assert log.advance(start, log.newest_version(start)) == start
    append(tmp_path, 2)
    assert numbers(tmp_path, log, start, log.advance(start, log.newest_version(start))) == [2]


def test_versions_that_change_no_row_give_none(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    log = opened(tmp_path)
    start = log.first_place("latest")
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    table.alter.add_columns([Field("more", "string")])
    table.vacuum(dry_run=False)
    assert log.advance(start, log.newest_version(start)) == start
    append(tmp_path, 3)
    end = log.advance(start, log.newest_version(start))
    assert numbers(tmp_path, log, start, end) == [3]
    for number in range(20):
        DeltaTable(str(tmp_path)).alter.add_columns([Field(f"more{number}", "string")])
    # It does not stay at a version that the log will forget.
    assert log.advance(end, log.newest_version(end)).version == end.version + 20


def test_limits_end_a_batch_within_the_snapshot_and_between_versions(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, number)
    log = opened(tmp_path)
    place = log.first_place("earliest")
    append(tmp_path, 3)
    append(tmp_path, 4)
    found: list[list[int]] = []
    while (end := log.advance(place, log.newest_version(place), Limits(2, 1 << 30))) != place:
        found.append(numbers(tmp_path, log, place, end))
        place = end
    assert [len(each) for each in found] == [2, 2, 1]
    assert sorted(number for each in found for number in each) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("change", ["delete", "overwrite", "restore"])
def test_what_removes_rows_is_refused_when_all_before_it_is_read(change: str, tmp_path: Path) -> None:
    append(tmp_path, 1)
    log = opened(tmp_path)
    start = log.first_place("latest")
    append(tmp_path, 2)
    if change == "delete":
        DeltaTable(str(tmp_path)).delete("n = 1")
    elif change == "overwrite":
        write_deltalake(str(tmp_path), pa.table({"n": [7]}), mode="overwrite")
    else:
        DeltaTable(str(tmp_path)).restore(0)
    append(tmp_path, 3)
    end = log.advance(start, log.newest_version(start))
    assert numbers(tmp_path, log, start, end) == [2]
    with pytest.raises(CannotRead, match=r"version 2 of the table .* removed or rewrote rows.*snapshot=True"):
        log.advance(end, log.newest_version(end))
    skipping = opened(tmp_path, skips_changes=True)
    assert numbers(tmp_path, skipping, end, skipping.advance(end, skipping.newest_version(end))) == [3]


def test_what_is_gone_is_told(tmp_path: Path) -> None:
    append(tmp_path / "a", 1)
    log = opened(tmp_path / "a")
    start = log.first_place("latest")
    append(tmp_path / "a", 2)
    append(tmp_path / "a", 3)
    end = log.advance(start, log.newest_version(start))
    for file in log.files_between(start, end):
        (tmp_path / "a" / file.path).unlink()
    with pytest.raises(CannotRead, match="is gone: vacuum removes files"):
        numbers(tmp_path / "a", log, start, end)
    DeltaTable(str(tmp_path / "a")).create_checkpoint()
    (tmp_path / "a/_delta_log" / f"{1:020d}.json").unlink()
    late = opened(tmp_path / "a")
    with pytest.raises(CannotRead, match=r"version 1 of the table .* is no longer in its log"):
        late.advance(start, late.newest_version(start))
    append(tmp_path / "b", 1)
    with pytest.raises(CannotRead, match="was made anew"):
        opened(tmp_path / "b").newest_version(start)
    with pytest.raises(CannotRead, match="there is no table at"):
        opened(tmp_path / "c").first_place("earliest")


@pytest.mark.parametrize("versions", [1, 5])
def test_a_table_that_is_made_anew_under_a_reader_is_told(versions: int, tmp_path: Path) -> None:
    append(tmp_path / "a", 1)
    append(tmp_path / "a", 2)
    log = opened(tmp_path / "a")
    start = log.first_place("latest")
    assert log.newest_version(start) == 1
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(NoTable, match="there is no table at"):
        log.newest_version(start)
    for number in range(versions):
        append(tmp_path / "a", number)
    with pytest.raises(CannotRead, match="was made anew"):
        log.newest_version(start)
    # The table itself, back at its place, is read on.
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    append(tmp_path / "a", 3)
    assert numbers(tmp_path / "a", log, start, log.advance(start, log.newest_version(start))) == [3]


def test_rows_that_a_restore_brings_back_are_not_read_twice(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    log = opened(tmp_path, skips_changes=True)
    start = log.first_place("latest")
    DeltaTable(str(tmp_path)).delete("n = 2")
    DeltaTable(str(tmp_path)).restore(1)  # adds the file again, and removes none
    append(tmp_path, 3)
    assert numbers(tmp_path, log, start, log.advance(start, log.newest_version(start))) == [3]


def test_files_without_a_column_and_partition_columns_are_read(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, 2], "day": [date(2026, 1, 31), None]})
    write_deltalake(str(tmp_path), rows, partition_by=["day"])
    DeltaTable(str(tmp_path)).alter.add_columns([Field("more", "string")])
    schema = StructType().add("more", StringType()).add("day", DateType()).add("n", LongType())
    log = opened(tmp_path)
    start = log.first_place("earliest")
    files = log.files_between(start, log.advance(start, log.newest_version(start)))
    assert [len(group) for group in grouped(files)] == [2]
    found = [row for batch in read_files(files, str(tmp_path), {}, schema) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["n"]) == [
        {"more": None, "day": date(2026, 1, 31), "n": 1},
        {"more": None, "day": None, "n": 2},
    ]


def test_a_stream_far_behind_reads_each_version_of_the_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    place = opened(tmp_path).first_place("latest")
    for number in range(8):
        append(tmp_path, number)
    monkeypatch.setattr(source, "LOOKED_AHEAD", 2)
    monkeypatch.setattr(appended, "KNOWN_COMMITS", 5)
    read: list[str] = []
    read_text = Store.read_text

    def counted(store: Store, path: str) -> str:
        read.append(path)
        return read_text(store, path)

    monkeypatch.setattr(Store, "read_text", counted)
    options = {"location": str(tmp_path), "key": "table:t", "maxFilesPerTrigger": "2"}
    reader = source.TableStreamReader(source.TableOptions.of(options), SCHEMA)
    start, lags = place.to_position("table:t"), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        assert len(reader.partitions(start, end)) == 1
        latest = reader.reportLatestOffset()
        assert latest is not None
        lags.append(latest["table:t"]["rows"] - end["table:t"]["rows"])
        start = end
    assert len(read) == len(set(read)) == 8
    assert lags == [3, 3, 2, 0], "at least, while it is far behind"


def test_the_last_rows_are_those_of_the_newest_files(tmp_path: Path) -> None:
    append(tmp_path, 1, 2, 3)
    log = opened(tmp_path)
    first = log.snapshot(0)
    append(tmp_path, 4, 5)
    files = [
        file._replace(written_ms=file.written_ms + (file not in first))
        for file in opened(tmp_path).snapshot(1)
    ]
    found = [batch["n"].to_pylist() for batch in read_last(files, 3, str(tmp_path), {}, SCHEMA)]
    assert found[0] == [4, 5]
    assert len([number for each in found for number in each]) == 3
