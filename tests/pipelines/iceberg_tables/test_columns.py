"""The columns of Iceberg tables: which there can be, and which rows fit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, NullType, StructField, StructType

from klamm.pipelines.iceberg_tables.columns import (
    check_columns,
    fit,
    iceberg_schema,
    partition_spec,
    type_text,
)
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.tables.columns import TableRefused
from tests.pipelines.iceberg_tables.writing import PLACE, batch_of, make_table, rows_in, write

ALL = (
    ("text", "string", "a"),
    ("bytes", "binary", b"a"),
    ("flag", "boolean", True),
    ("tiny", "tinyint", 1),
    ("small", "smallint", 2),
    ("number", "int", 3),
    ("big", "bigint", 4),
    ("real", "float", 0.5),
    ("double", "double", 0.25),
    ("money", "decimal(10,2)", Decimal("1.50")),
    ("large", "decimal(38,3)", Decimal("12345678901234567890.125")),
    ("day", "date", date(2026, 1, 31)),
    ("at", "timestamp", datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
    ("local", "timestamp_ntz", datetime(2026, 1, 31, 12)),
    ("tags", "array<string>", ["a", None]),
    ("counts", "map<string,bigint>", [("a", 1)]),
    ("line", "struct<sku:string,seen:timestamp,parts:array<struct<n:int>>>",
        {"sku": "s", "seen": datetime(2026, 1, 31, tzinfo=UTC), "parts": [{"n": 1}]}),
)  # fmt: skip


def columns(*named: tuple[str, str | DataType]) -> StructType:
    """A schema; duplicates and types that no source has are possible, too."""
    return StructType(
        [
            StructField(name, kind if isinstance(kind, DataType) else parse_ddl(f"x {kind}")[0].dataType)
            for name, kind in named
        ]
    )


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    schema = columns(*[(name, kind) for name, kind, _ in ALL])
    check_columns(schema, (), "orders", PLACE)
    row = {name: value for name, _, value in ALL}
    files = write(table, [row, dict.fromkeys(row)], schema)
    table.append(files, batch_of(range(2), 0), pa.schema([]), ())
    assert rows_in(table) == [row, dict.fromkeys(row)]
    table.check(schema, (), "orders", PLACE)


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (columns(("a.b", "int")), (), "its name has a dot"),
        (columns(("a", "int"), ("A", "int")), (), "two columns called A"),
        (columns(("gap", DayTimeIntervalType())), (), "INTERVAL DAY TO SECOND, which"),
        (columns(("x", ArrayType(NullType()))), (), "has no type"),
        (columns(("part", "double"), ("n", "int")), ("part",), "NaN has no place"),
        (columns(("part", "array<int>"), ("n", "int")), ("part",), "partition_by of orders names part"),
        (columns(("n", "int")), ("day",), "names day, which it does not have"),
    ],
)
def test_columns_that_a_table_cannot_have(
    schema: StructType, partition_by: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TableRefused, match=message):
        check_columns(schema, partition_by, "orders", PLACE)


@pytest.mark.parametrize(
    ("now", "partition_by", "message"),
    [
        (columns(("n", "string"), ("day", "date")), ("day",), "the column n is string now, and long in"),
        (
            columns(("n", "bigint"), ("day", "date"), ("line", "struct<a:int>")),
            ("day",),
            r"line is struct<a: int> now, and struct<a: int, b: list<string>> in the table lake\.shop",
        ),
        (columns(("n", "bigint"), ("day", "date")), (), "is partitioned by day, not by nothing"),
        (columns(("n", "bigint"), ("day", "date")), ("n",), "is partitioned by day, not by n"),
    ],
)
def test_rows_that_do_not_fit(now: StructType, partition_by: tuple[str, ...], message: str) -> None:
    before = columns(("n", "bigint"), ("day", "date"), ("line", "struct<a:int,b:array<string>>"))
    table = iceberg_schema(before)
    with pytest.raises(TableRefused, match=message):
        fit(now, partition_by, table, partition_spec(table, ("day",)), "lake.shop.orders", PLACE)


def test_new_columns_and_other_spellings() -> None:
    table = iceberg_schema(columns(("n", "int"), ("Day", "date")))
    now = columns(("day", "date"), ("n", "smallint"), ("more", "map<string,array<int>>"))
    fitted = fit(now, ("day",), table, partition_spec(table, ("day",)), "lake.shop.orders", PLACE)
    assert fitted.renamed == {"day": "Day"}
    assert {name: type_text(kind) for name, kind in fitted.new.items()} == {"more": "map<string, list<int>>"}
