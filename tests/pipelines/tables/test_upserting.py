"""Upserts: which row of several with the same keys stays, and that no other file of the table is touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from klamm.pipelines.tables.files import Target
from klamm.pipelines.tables.table import Batch, BatchCommittedElsewhere, Table
from klamm.pipelines.tables.upserting import Choice, KeysRefused, upsert
from tests.pipelines.tables.writing import OWNER, make_table, written

PRICES = pa.schema([("item", pa.string()), ("Price", pa.int64())])


def put(table: Table, batch: int, **prices: int) -> None:
    target = Target(table.location, PRICES, label=f"staged-{batch}")
    rows = [{"item": item, "Price": price} for item, price in prices.items()]
    upsert(table, written(table, rows, PRICES), Batch(OWNER, 1, batch), target, ("item",), Choice(("item",)))


def prices(table: Table) -> dict[str, int]:
    newest = table.newest()
    assert newest is not None
    return {row["item"]: row["Price"] for row in newest.to_pyarrow_table().to_pylist()}


def test_an_upsert_replaces_rows_with_the_same_keys(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, 0, tea=3, boots=70)
    put(table, 1, tea=4, map=9)
    put(table, 2)
    assert prices(table) == {"tea": 4, "boots": 70, "map": 9}
    assert table.last_batch(OWNER, 1) == 2
    with pytest.raises(BatchCommittedElsewhere):
        put(table, 2, tea=5)
    named = {Path(uri).name for uri in table.newest().file_uris()}  # type: ignore[union-attr]
    assert {file.name for file in Path(table.location).rglob("rows-*")} <= named, "staged files are removed"


def test_two_rows_of_a_batch_with_one_key_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    rows = [{"item": "tea", "Price": 1}, {"item": "tea", "Price": 2}]
    target = Target(table.location, PRICES)
    with pytest.raises(KeysRefused, match="two rows of batch 0 of attempt 1 have the same item"):
        upsert(table, written(table, rows, PRICES), Batch(OWNER, 1, 0), target, (), Choice(("item",)))


RECORDS = pa.schema(
    [
        ("item", pa.string()),
        ("changed", pa.date32()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_offset", pa.int64()),
        ("_partition", pa.int32()),
    ]
)


def record(item: str, minute: int, offset: int, partition: int = 0, day: int | None = 1) -> dict[str, Any]:
    changed = None if day is None else date(2026, 1, day)
    at = datetime(2026, 1, 31, 12, minute, tzinfo=UTC)
    return {"item": item, "changed": changed, "_timestamp": at, "_offset": offset, "_partition": partition}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Choice(("Item",)), {"tea": (5, 9, 1), "map": (3, 4, 0)}),
        (Choice(("item",), keep="oldest"), {"tea": (1, 7, 0), "map": (2, 3, 0)}),
        (Choice(("item",), ("Changed",)), {"tea": (4, 2, 1), "map": (2, 3, 0)}),
        (Choice(("item",), ("changed",), "oldest"), {"tea": (1, 7, 0), "map": (2, 3, 0)}),
    ],
)
def test_the_row_that_stays_does_not_depend_on_the_order_of_the_batches(
    tmp_path: Path, given: Choice, kept: dict[str, tuple[int, int, int]]
) -> None:
    """Late records, and records that come twice, lead to the same table."""
    batches = [
        [record("tea", 1, 7), record("map", 2, 3, day=2)],
        [record("tea", 5, 9, partition=1), record("map", 3, 4, day=None)],
        [record("tea", 4, 2, partition=1, day=3)],
        [record("tea", 5, 9, partition=0)],
    ]
    choice = given.spelled(RECORDS.names)
    for number, order in enumerate((batches, [*batches[::-1], batches[1]])):
        table = Table(str(tmp_path / str(number)))
        for batch, rows in enumerate(order):
            target = Target(table.location, RECORDS, label=f"staged-{batch}")
            files = written(table, rows, RECORDS)
            upsert(table, files, Batch(OWNER, 1, batch), target, (), choice)
        newest = table.newest()
        assert newest is not None
        found = newest.to_pyarrow_table().to_pylist()
        stayed = {row["item"]: (row["_timestamp"].minute, row["_offset"], row["_partition"]) for row in found}
        assert stayed == kept and len(found) == 2


def test_an_upsert_reads_only_files_that_may_have_its_keys(tmp_path: Path) -> None:
    """Hours of last year are not read when the present hour changes."""
    table = make_table(tmp_path)
    hours = pa.schema([("hour", pa.timestamp("us", "UTC")), ("item", pa.string()), ("n", pa.int64())])
    for batch, (hour, n) in enumerate([(0, 1), (1, 1), (2, 1), (2, 5)]):
        at = datetime(2026, 1, 31, hour, tzinfo=UTC)
        files = written(table, [{"hour": at, "item": "tea", "n": n}], hours)
        target = Target(table.location, hours, label=f"staged-{batch}")
        upsert(table, files, Batch(OWNER, 1, batch), target, (), Choice(("hour", "item")))
    newest = table.newest()
    assert newest is not None
    assert sorted(newest.to_pyarrow_table()["n"].to_pylist()) == [1, 1, 5]
    scanned = newest.history(1)[0]["operationMetrics"]["num_target_files_scanned"]
    assert int(scanned) == 1


def test_rows_without_coordinates_are_as_new_as_their_batch() -> None:
    assert Choice(("item",)).spelled(["item", "Price", "_timestamp"]).order_by == ()
    assert Choice(("item",)).replaces() == "TRUE"
    assert Choice(("item",), keep="oldest").replaces() == "FALSE"
    assert Choice(("item",), ("PRICE",)).spelled(["item", "Price"]).order_by == ("Price",)
    assert Choice(("item",), ("Price",)).spelled(["item", "Price", "_offset", "_topic"]).order_by == (
        "Price",
    )


def long_text(chance: random.Random) -> str:
    return "".join(chance.choice("az0ä\uffff\U0010ffff") for _ in range(chance.choice((1, 31, 33, 300))))


KEYS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "text": (pa.string(), long_text),
    "time": (
        pa.timestamp("us", "UTC"),
        lambda chance: (
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**6))
        ),
    ),
    "decimal": (pa.decimal128(38, 5), lambda chance: Decimal(chance.randrange(10**30)).scaleb(-5)),
    "number": (pa.int64(), lambda chance: chance.randrange(-(2**63), 2**63)),
    "fraction": (pa.float64(), lambda chance: chance.choice((float("inf"), -0.5, 1e300, chance.random()))),
    "bytes": (pa.binary(), lambda chance: chance.randbytes(chance.choice((1, 40)))),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_all_types_are_found_again(tmp_path: Path, kind: str) -> None:
    """Files are left out by the least and greatest of their keys, which the log has shortened."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    data_type, draw = KEYS[kind]
    keys = list({draw(chance) for _ in range(40)})
    schema = pa.schema([("key", data_type), ("batch", pa.int64())])
    table = make_table(tmp_path)
    left = [*keys, *chance.sample(keys, len(keys)), *keys]
    batch = 0
    while left:
        count = chance.randrange(1, 9)
        those, left = dict.fromkeys(left[:count]), left[count:]
        files = written(table, [{"key": key, "batch": batch} for key in those], schema)
        target = Target(table.location, schema, label=f"staged-{batch}")
        upsert(table, files, Batch(OWNER, 1, batch), target, (), Choice(("key",)))
        batch += 1
    newest = table.newest()
    assert newest is not None
    found = newest.to_pyarrow_table()["key"].to_pylist()
    assert sorted(found) == sorted(keys), f"seed {seed}"
