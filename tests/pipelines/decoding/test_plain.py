"""JSON, CSV and text in Spark: what decodes, and what is an error instead of silently nothing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from klamm.pipelines.decoding import decode, unknown_fields
from klamm.pipelines.decoding.plain import EMPTY, LOOKED_AT, NOT_CSV, NOT_JSON, NOT_ONE, NOT_TEXT
from klamm.pipelines.definitions import Format, Source
from klamm.pipelines.errors import Place
from klamm.pipelines.project import Project
from klamm.pipelines.schemas import schema_of
from tests.pipelines.projects import make_project

CARRIED_DDL = (
    "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY, _value BINARY, "
    "_headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def source_of(format: Format, schema: str | None, **options: str) -> Source:
    return Source("s", len, Place(Path("s.py"), 1), format=format, schema=schema, options=options)


def raw(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [("t", 0, number, datetime(2026, 1, 1), None, value, None) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, CARRIED_DDL).coalesce(1)


def decoded(spark: SparkSession, project: Project, source: Source, values: list[bytes | None]) -> list[Row]:
    schema = schema_of(project, source)
    return decode(raw(spark, values), source, schema, project).collect()


def answers(rows: list[Row], *columns: str) -> list[Any]:
    return [row["_error"] or tuple(row[name] for name in columns) for row in rows]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def test_json(spark: SparkSession, project: Project) -> None:
    cases: dict[bytes | None, object] = {
        b'{"a": 1, "b": "x"}': (1, "x"),
        b' {"a": 1} \r\n': (1, None),
        b"{}": (None, None),
        b'{"b": {"in": "side"}}': (None, '{"in":"side"}'),
        b'{"b": "\xc3\xa4"}': (None, "ä"),
        b'{"b": [{"in": 1}, {"in": 2}]}': (None, '[{"in":1},{"in":2}]'),
        b'{"b": "}{"}': (None, "}{"),
        b"{'b': '} {'}": (None, "} {"),
        None: (None, None),
        b"": EMPTY,
        b" \n": EMPTY,
        b'{"a": "no number", "b": "x"}': NOT_JSON,
        b'{"a": 1.5}': NOT_JSON,
        b'{"a": 99999999999999999999}': NOT_JSON,
        b'{"a": 1': NOT_JSON,
        b"nonsense": NOT_JSON,
        b"null": NOT_JSON,
        b"17": NOT_JSON,
        b'[{"a": 1}, {"a": 2}]': NOT_JSON,
        b'{"a": 1} and more': NOT_JSON,
        b'{"a": 1}\n{"a": 2}': NOT_ONE,
        b'{"a": 1}, {"a": 2}': NOT_ONE,
        b'{"a": 1}|{"a": 2}': NOT_ONE,
        b'{"a": 1} ; {"a": 2}': NOT_ONE,
        b'{"a": 1}\x1e{"a": 2}': NOT_ONE,
        b'{"a": 1}x}': NOT_ONE,
        b'{"b": "\xff"}': NOT_TEXT,
    }
    rows = decoded(spark, project, source_of("json", "a BIGINT, b STRING"), list(cases))
    assert dict(zip(cases, answers(rows, "a", "b"), strict=True)) == cases
    assert rows[0]["_offset"] == 0
    assert rows[0]["_value"] == b'{"a": 1, "b": "x"}'


def test_json_takes_options_of_the_reader(spark: SparkSession, project: Project) -> None:
    source = source_of("json", "`at time` TIMESTAMP", timestampFormat="dd.MM.yyyy HH:mm", timeZone="UTC")
    rows = decoded(spark, project, source, [b'{"at time": "31.01.2026 12:30"}', b'{"at time": "soon"}'])
    assert rows[0]["at time"] is not None
    assert [row["_error"] for row in rows] == [None, NOT_JSON]


def test_csv(spark: SparkSession, project: Project) -> None:
    cases: dict[bytes | None, object] = {
        b"1;x": (1, "x"),
        b"1;x\r\n": (1, "x"),
        b'1;"x;y"': (1, "x;y"),
        b'1;"x\ny"': (1, "x\ny"),
        b"1;x\n2;y": NOT_CSV,
        b";": (None, None),
        None: (None, None),
        b"": EMPTY,
        b"1": NOT_CSV,
        b"1;x;y": NOT_CSV,
        b"one;x": NOT_CSV,
        b"1;\xff": NOT_TEXT,
    }
    rows = decoded(spark, project, source_of("csv", "a INT, b STRING", sep=";"), list(cases))
    assert dict(zip(cases, answers(rows, "a", "b"), strict=True)) == cases


def test_text_and_binary(spark: SparkSession, project: Project) -> None:
    values = [b"a line", b"", None, b"\xff"]
    text = decoded(spark, project, source_of("text", None), values)
    assert answers(text, "value") == [("a line",), ("",), (None,), NOT_TEXT]
    latin = decoded(spark, project, source_of("text", None, encoding="ISO-8859-1"), values)
    assert answers(latin, "value") == [("a line",), ("",), (None,), ("ÿ",)]
    binary = decoded(spark, project, source_of("binary", None), values)
    assert [(row["value"], row["_error"]) for row in binary] == [(value, None) for value in values]


def test_fields_that_the_schema_does_not_know_are_looked_for_now_and_then(
    spark: SparkSession, project: Project
) -> None:
    source = source_of("json", "a INT")
    schema = schema_of(project, source)
    values: list[bytes | None] = [b'{"a": 1, "colour": "red", "x": {}}'] * (LOOKED_AT + 1)
    unknown = unknown_fields(source, schema)
    assert unknown is not None
    rows = decode(raw(spark, values), source, schema, project).select(unknown.alias("u")).collect()
    assert [number for number, row in enumerate(rows) if row["u"] is not None] == [0, LOOKED_AT]
    assert rows[0]["u"] == ["colour", "x"]
    assert unknown_fields(source_of("text", None), schema) is None
