from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from klamm.operating.errors import CannotDo
from klamm.operating.pipelines import tables
from klamm.operating.pipelines.tables import MOST_CHARACTERS, MOST_COLUMNS, history, newest_rows
from tests.pipelines.tables.writing import append, make_table


def orders(first: int, count: int) -> pa.Table:
    """Rows as a pipeline writes them, with the coordinates of their records."""
    numbers = range(first, first + count)
    times = [datetime.fromtimestamp(1_700_000_000 + number, UTC) for number in numbers]
    return pa.table(
        {
            "_topic": ["orders"] * count,
            "_partition": pa.array([0] * count, pa.int32()),
            "_offset": pa.array(list(numbers), pa.int64()),
            "_timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "item": [f"item-{number}" for number in numbers],
        }
    )


def spoil(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.write_bytes(b"not a file of Parquet")


async def test_the_newest_rows_come_first(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(str(tmp_path), orders(number * 10, 10), mode="append")
    found = await newest_rows(str(tmp_path), {}, most=15)
    assert found is not None
    assert (found.version, found.files, found.records) == (3, 4, 40)
    assert found.columns == ("item", "_topic", "_partition", "_offset", "_timestamp")
    assert [row[0] for row in found.rows] == [f"item-{number}" for number in range(39, 24, -1)]
    assert found.rows[0][3:] == ("39", "2023-11-14 22:13:59.000+00:00")


async def test_only_the_newest_files_are_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), orders(0, 10), mode="append")
    spoil(tmp_path)
    write_deltalake(str(tmp_path), orders(10, 10), mode="append")
    found = await newest_rows(str(tmp_path), {}, most=10)
    assert found is not None and len(found.rows) == 10
    with pytest.raises(CannotDo, match="cannot be read"):
        await newest_rows(str(tmp_path), {}, most=11)


async def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    rows = pa.table({"n": list(range(100_000))})
    write_deltalake(str(tmp_path), rows)
    found = await newest_rows(str(tmp_path), {}, most=3)
    assert found is not None
    assert [row[0] for row in found.rows] == ["99999", "99998", "99997"]


async def test_a_row_group_that_is_too_large_is_not_decoded_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_GROUP_BYTES", 1_000)
    write_deltalake(str(tmp_path), pa.table({"n": list(range(100_000))}))
    found = await newest_rows(str(tmp_path), {}, most=3)
    assert found is not None and len(found.rows) == 3


async def test_values_are_texts_of_bounded_length(tmp_path: Path) -> None:
    row = {
        "text": ["<b>" + "x" * 10_000],
        "bytes": [b"\x00\xff"],
        "list": [[1, 2]],
        "nothing": pa.array([None], pa.string()),
        "far": pa.array([2**62], pa.timestamp("us", "UTC")),
    }
    write_deltalake(str(tmp_path), pa.table(row))
    found = await newest_rows(str(tmp_path), {})
    assert found is not None
    (values,) = found.rows
    assert values[0] is not None and len(values[0]) == MOST_CHARACTERS
    assert values[1:] == ("00 ff", "[1, 2]", None, "(cannot be shown)")


async def test_of_many_columns_the_first_are_shown_and_the_coordinates(tmp_path: Path) -> None:
    wide = orders(0, 1)
    for number in range(100):
        wide = wide.append_column(f"c{number}", pa.array([number]))
    write_deltalake(str(tmp_path), wide)
    found = await newest_rows(str(tmp_path), {})
    assert found is not None
    assert (len(found.columns), found.more_columns) == (MOST_COLUMNS, 105 - MOST_COLUMNS)
    assert "_offset" in found.columns


async def test_partition_columns_are_shown(tmp_path: Path) -> None:
    rows = pa.table({"day": ["mon", "tue"], "n": [1, 2]})
    write_deltalake(str(tmp_path), rows, partition_by=["day"])
    found = await newest_rows(str(tmp_path), {})
    assert found is not None
    assert {row for row in found.rows} == {("mon", "1"), ("tue", "2")}


async def test_the_history_says_what_each_version_did(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, range(5), batch=0)
    append(table, range(5, 7), batch=1)
    newest, oldest = await history(table.location, {})
    assert (newest.version, newest.what, newest.rows) == (1, "batch 1 of attempt 1", 2)
    assert (oldest.version, oldest.pipeline) == (0, "shop.table")
    assert newest.time_ms >= oldest.time_ms


async def test_where_no_table_is_there_are_no_rows(tmp_path: Path) -> None:
    assert await newest_rows(str(tmp_path / "none"), {}) is None
    assert await history(str(tmp_path / "none"), {}) == []


async def test_a_store_that_is_not_there_is_an_error_in_words() -> None:
    with pytest.raises(CannotDo, match="table s3://no-such-bucket/t cannot be read"):
        await newest_rows(
            "s3://no-such-bucket/t",
            {
                "aws_endpoint": "http://127.0.0.1:1",
                "aws_allow_http": "true",
                "aws_access_key_id": "x",
                "aws_secret_access_key": "x",
                "aws_region": "x",
                "max_retries": "0",
            },
        )
