"""What is worked out without Spark, held to what Spark itself says."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.schemas.fitting import misfits
from klamm.pipelines.schemas.inference import infer
from tests.pipelines.schemas.test_ddl import TEXTS


@pytest.mark.parametrize("text", TEXTS)
def test_column_lists(spark: SparkSession, text: str) -> None:
    assert parse_ddl(text) == StructType.fromDDL(text)


VALUES: list[tuple[str, object]] = [
    ("BIGINT", 1),
    ("BIGINT", 1.0),
    ("BIGINT", "1"),
    ("BIGINT", True),
    ("INT", 2**31),
    ("TINYINT", 256),
    ("BOOLEAN", True),
    ("BOOLEAN", "true"),
    ("BOOLEAN", 1),
    ("DOUBLE", 1),
    ("DOUBLE", "1.5"),
    ("DOUBLE", "NaN"),
    ("DECIMAL(4,2)", 12.34),
    ("DECIMAL(4,2)", 123.4),
    ("STRING", {"a": 1}),
    ("STRING", 17),
    ("DATE", "2026-01-31"),
    ("DATE", "31.1.2026"),
    ("TIMESTAMP", "2026-01-31T12:00:00Z"),
    ("TIMESTAMP", "2026-01-31 12:00:00.123456+02:00"),
    ("TIMESTAMP", "2026-01-31T12:00:00+0200"),
    ("TIMESTAMP", "2026-01-31T12:00"),
    ("TIMESTAMP", "2026-01-31"),
    ("TIMESTAMP", "soon"),
    ("TIMESTAMP", 1769860800),
    ("ARRAY<INT>", [1, None]),
    ("ARRAY<INT>", ["x"]),
    ("ARRAY<INT>", 1),
    ("STRUCT<x: INT>", {"x": 1, "y": 2}),
    ("STRUCT<x: INT>", {"x": "no"}),
    ("STRUCT<x: INT>", 1),
    ("MAP<STRING, INT>", {"k": 1}),
    ("MAP<STRING, INT>", {"k": "v"}),
]


def test_what_fits(spark: SparkSession) -> None:
    """One query for all: each pair in a column of its own."""
    columns = []
    for number, (ddl, value) in enumerate(VALUES):
        schema = parse_ddl(f"a {ddl}, _error STRING")
        text = F.lit(json.dumps({"a": value}))
        parsed = F.from_json(text, schema, {"columnNameOfCorruptRecord": "_error"})
        columns.append(parsed["_error"].isNull().alias(str(number)))
    row = spark.range(1).select(*columns).collect()[0]
    for number, (ddl, value) in enumerate(VALUES):
        ours = not list(misfits({"a": value}, parse_ddl(f"a {ddl}")))
        assert ours == row[number], f"{value!r} as {ddl}: Spark says {row[number]}"


def test_what_is_inferred_is_read_in_full(spark: SparkSession) -> None:
    samples = [
        {"id": "a", "n": 1, "at": "2026-01-31T12:00:00.5Z", "day": "2026-01-31", "x": {"y": [1, 2.5]}},
        {"id": 17, "n": 2.5, "at": "2026-01-31 12:00", "day": None, "x": {"z": True}, "big": 10**20},
    ]
    schema = infer(samples)
    checked = StructType.fromJson({**schema.jsonValue()}).add("_error", "string")
    frame = spark.createDataFrame([(json.dumps(sample),) for sample in samples], "text STRING")
    parsed = frame.select(F.from_json("text", checked, {"columnNameOfCorruptRecord": "_error"}).alias("r"))
    rows = parsed.select("r.*").collect()
    assert [row["_error"] for row in rows] == [None, None]
    assert all(row["at"] is not None and row["n"] is not None for row in rows)
