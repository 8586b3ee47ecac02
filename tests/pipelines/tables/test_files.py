"""The files that tasks write: their sizes, their statistics, and where they are."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klamm.pipelines.tables import files
from klamm.pipelines.tables.files import Target, TaskWriter, write_files
from klamm.pipelines.tables.partitioning import NOTHING, as_text, split
from klamm.pipelines.tables.table import Batch
from tests.faulty_disk import replace_below
from tests.pipelines.tables.writing import OWNER, SCHEMA, make_table, written

ODD_VALUES = [
    "a b",
    "c/d",
    "e%f",
    "g:h",
    "é",
    "i=j",
    "",
    None,
    "x'y",
    "#?&",
    "日本",
    "..",
    "a\\b",
    "l*m",
    "<>|",
]


def test_a_file_is_ended_when_it_is_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 1000)
    target = Target(str(tmp_path), SCHEMA, label="1-00000000", target_bytes=2000)
    batches = [pa.RecordBatch.from_pydict({"n": range(at, at + 200)}, SCHEMA) for at in range(0, 2000, 200)]
    (report,) = list(write_files(iter(batches), target))
    assert sum(report["rows"].to_pylist()) == 2000
    assert report.num_rows > 2 and all(bytes_ < 5000 for bytes_ in report["bytes"].to_pylist())
    for path, bytes_, rows in zip(
        *[report[name].to_pylist() for name in ("path", "bytes", "rows")], strict=True
    ):
        assert (tmp_path / path).stat().st_size == bytes_
        assert pq.read_metadata(tmp_path / path).num_rows == rows
        assert path.startswith("rows-1-00000000-00000-")


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert written(make_table(tmp_path), []) == []
    assert not (tmp_path / "orders").exists()


def test_what_is_kept_in_memory_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUFFERED_BYTES", 4000)
    schema = pa.schema([("n", pa.int64()), ("day", pa.int64())])
    writer = TaskWriter(Target(str(tmp_path), schema, ("day",)))
    for at in range(0, 5000, 100):
        days = [number % 7 for number in range(at, at + 100)]
        writer.add(pa.RecordBatch.from_pydict({"n": range(at, at + 100), "day": days}, schema))
        assert writer.buffered_bytes <= 4000
    reports = writer.finish()
    assert len(reports) == 7 and sum(report["rows"] for report in reports) == 5000


def test_a_task_that_fails_tells_of_no_file(tmp_path: Path) -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pydict({"n": [1, 2]}, SCHEMA)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(write_files(batches(), Target(str(tmp_path), SCHEMA)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is synced is seen in /proc")
def test_files_and_their_folders_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    synced: list[str] = []
    replace_below(
        tmp_path, monkeypatch, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    table = make_table(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("day", pa.string())])
    found = written(table, [{"n": 1, "day": "x"}], schema, ("day",))
    folder = tmp_path / "orders/day=x"
    assert {str(tmp_path / "orders" / found[0].path), str(folder), str(tmp_path / "orders")} <= set(synced)
    synced.clear()
    table.append(found, Batch(OWNER, 1, 0), schema, ("day",))
    log = tmp_path / "orders/_delta_log"
    assert {str(log / f"{0:020d}.json"), str(log)} <= set(synced)


# ---- partitions


def test_rows_are_split_by_the_values_of_their_partition_columns() -> None:
    rows = pa.table({"n": range(6), "day": ["a", "b", "a", None, "b", "a"], "hour": [1, 1, 2, 1, 1, 1]})
    found = {values.values: part["n"].to_pylist() for values, part in split(rows, ["day", "hour"])}
    assert found == {("a", "1"): [0, 5], ("b", "1"): [1, 4], ("a", "2"): [2], (None, "1"): [3]}
    assert [values for values, _ in split(rows, [])] == [NOTHING]
    assert list(split(rows.slice(0, 0), ["day"])) == []


def test_any_value_of_a_partition_column_is_read_back(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("p", pa.string())])
    rows = [{"n": number, "p": value} for number, value in enumerate(ODD_VALUES)]
    table.append(written(table, rows, schema, ("p",)), Batch(OWNER, 1, 0), schema, ("p",))
    newest = table.newest()
    assert newest is not None
    found = {row["n"]: row["p"] for row in newest.to_pyarrow_table().to_pylist()}
    assert found == {number: value or None for number, value in enumerate(ODD_VALUES)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        (True, "true"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC), "2026-01-31 12:00:00.000005"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_values_are_written_as_delta_does(value: Any, text: str | None) -> None:
    assert as_text(value) == text


# ---- statistics


def statistics_of(tmp_path: Path, column: pa.Array) -> dict[str, Any]:
    schema = pa.schema([("x", column.type)])
    (found,) = written(make_table(tmp_path), [{"x": value} for value in column.to_pylist()], schema)
    value: dict[str, Any] = json.loads(found.statistics)
    return value


@pytest.mark.parametrize(
    ("column", "least", "greatest", "nulls"),
    [
        (pa.array([3, None, 1]), 1, 3, 1),
        (pa.array(["b", "a" * 40]), "a" * 32, "b", 0),
        (pa.array(["a", "b" * 40]), "a", "b" * 32 + "\U0010ffff", 0),
        (pa.array([date(2026, 1, 31)]), "2026-01-31", "2026-01-31", 0),
        (
            pa.array([datetime(2026, 1, 31, microsecond=1500, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "2026-01-31T00:00:00.001Z",
            "2026-01-31T00:00:00.002Z",
            0,
        ),
        (pa.array([Decimal("1.25")]), 1.25, 1.25, 0),
    ],
)
def test_statistics_are_bounds(
    tmp_path: Path, column: pa.Array, least: Any, greatest: Any, nulls: int
) -> None:
    found = statistics_of(tmp_path, column)
    assert found["numRecords"] == len(column)
    assert (found["minValues"]["x"], found["maxValues"]["x"]) == (least, greatest)
    assert found["nullCount"]["x"] == nulls


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("inf")]),
        pa.array([Decimal("12345678901234567.89")]),
        pa.array([Decimal("1.5"), Decimal("12345678901234567.9")]),
    ],
)
def test_bounds_that_json_would_round_are_left_out(tmp_path: Path, column: pa.Array) -> None:
    found = statistics_of(tmp_path, column)
    assert found["minValues"] == found["maxValues"] == {} and found["numRecords"] == len(column)


@pytest.mark.parametrize(
    "column", [pa.array([None, None], pa.int64()), pa.array([b"x"]), pa.array([[1]]), pa.array([{"a": 1}])]
)
def test_other_columns_have_no_bounds(tmp_path: Path, column: pa.Array) -> None:
    found = statistics_of(tmp_path, column)
    assert found["minValues"] == found["maxValues"] == {}


def test_readers_find_rows_beside_a_nan(tmp_path: Path) -> None:
    import polars

    table = make_table(tmp_path)
    schema = pa.schema([("x", pa.float64())])
    rows = [{"x": value} for value in (1.0, float("nan"), 5.0)]
    table.append(written(table, rows, schema), Batch(OWNER, 1, 0), schema, ())
    found = polars.scan_delta(table.location).filter(polars.col("x") == 5.0).collect()
    assert found.height == 1
