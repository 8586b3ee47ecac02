"""Which columns a table can have, and whether rows still fit it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import DayTimeIntervalType, StructType

from klamm.pipelines.errors import Place
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.tables.columns import (
    TableRefused,
    arrow_schema,
    check_columns,
    delta_schema,
    fit,
    missing_columns,
)

HERE = Place(Path("orders.py"), 7)


def columns(text: str) -> StructType:
    found = parse_ddl(text.replace("VOID", "BINARY").replace(", N ", ", M "))
    as_json = json.dumps(found.jsonValue()).replace('"M"', '"N"')
    return StructType.fromJson(json.loads(as_json.replace("binary", "void") if "VOID" in text else as_json))


@pytest.mark.parametrize(
    ("text", "partition_by", "words"),
    [
        ("n INT, N STRING", (), "two columns called N"),
        ("`the sum` INT", (), "cannot be in a table"),
        ("n VOID", (), "has no type"),
        ("n ARRAY<VOID>", (), "has no type"),
        ("n VARIANT", (), "the column n of orders is VARIANT, which a table cannot have"),
        ("n INT", ("day",), "names day, which it does not have"),
        ("n INT, day ARRAY<INT>", ("day",), "names day, which is ARRAY<INT>"),
        ("day DATE", ("day",), "names all of its columns"),
    ],
)
def test_columns_that_delta_does_not_know_are_refused(
    text: str, partition_by: tuple[str, ...], words: str
) -> None:
    with pytest.raises(TableRefused, match=words) as refused:
        check_columns(columns(text), partition_by, "orders", HERE)
    assert refused.value.place == HERE and refused.value.advice


def test_new_columns_are_found_and_others_are_spelt_as_the_table_does() -> None:
    there = delta_schema(arrow_schema(columns("Id STRING, amount DOUBLE, old INT")))
    fitted = fit(columns("id STRING, amount DOUBLE, colour STRING"), (), there, (), "tables/orders", HERE)
    assert fitted.renamed == {"id": "Id"}
    assert [field.name for field in fitted.new] == ["colour"]
    assert missing_columns(columns("id STRING"), there) == ["amount", "old"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("n BIGINT", "n STRING", "the column n is STRING now, and BIGINT in the table"),
        ("n ARRAY<INT>", "n ARRAY<BIGINT>", "is ARRAY<BIGINT> now, and ARRAY<INT> in"),
        ("n STRUCT<a: INT>", "n STRUCT<a: INT, b: INT>", "is STRUCT<a: INT, b: INT> now"),
        ("n TIMESTAMP", "n TIMESTAMP_NTZ", "is TIMESTAMP_NTZ now, and TIMESTAMP in"),
        ("n MAP<STRING, INT>", "n MAP<STRING, DATE>", "is MAP<STRING, DATE> now"),
    ],
)
def test_other_types_are_refused_with_both(old: str, new: str, words: str) -> None:
    with pytest.raises(TableRefused, match=words):
        fit(columns(new), (), delta_schema(arrow_schema(columns(old))), (), "tables/orders", HERE)


def test_other_partition_columns_are_refused() -> None:
    there = delta_schema(arrow_schema(columns("n INT, day DATE")))
    with pytest.raises(TableRefused, match="is partitioned by day, not by nothing"):
        fit(columns("n INT, day DATE"), (), there, ("day",), "tables/orders", HERE)


def test_intervals_are_refused() -> None:
    """No source has them, but Spark makes them of the difference of two times."""
    with pytest.raises(TableRefused, match="gap of orders is INTERVAL DAY TO SECOND, which a ta"):
        check_columns(StructType().add("gap", DayTimeIntervalType()), (), "orders", HERE)
