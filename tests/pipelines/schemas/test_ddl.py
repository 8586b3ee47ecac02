from __future__ import annotations

import pytest
from pyspark.sql import types

from klamm.pipelines.errors import SchemaError
from klamm.pipelines.schemas.ddl import parse_ddl

TEXTS = [
    "id STRING",
    "order_id STRING, customer STRING, amount DOUBLE, at TIMESTAMP",
    "a: byte, b: decimal(  16 , 8   ) ",
    "a tinyint, b smallint, c int, d integer, e bigint, f long, g short, h byte",
    "a float, b real, c double, d boolean, e binary, f date, g timestamp_ntz, h timestamp_ltz, i variant",
    "a dec, b numeric(5), c DECIMAL(38,38)",
    "a char(5), b varchar(20)",
    "a array<short>, b map<string, array<int>>, c struct<x: int, y: struct<z STRING NOT NULL COMMENT 'x'>>",
    "`odd name` int, `back``tick` string not null",
    "x int comment 'it\\'s, a <comment>', y string",
    "e struct<>",
    "timestamp timestamp, date date, comment string, map map<int,int>",
    "_1 int, 1a int",
]
"""Column lists that Spark's parser reads; test_spark_agreement.py compares its answers with ours."""


def test_columns_become_fields() -> None:
    schema = parse_ddl("id STRING NOT NULL COMMENT 'of the order', tags ARRAY<STRING>, price DECIMAL(10, 2)")
    assert schema == types.StructType(
        [
            types.StructField("id", types.StringType(), False, {"comment": "of the order"}),
            types.StructField("tags", types.ArrayType(types.StringType())),
            types.StructField("price", types.DecimalType(10, 2)),
        ]
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the name of a column is missing"),
        ("id", "id has no type"),
        ("id DUBLE", "Did you mean DOUBLE?"),
        ("id zzz", "Use one of"),
        ("id STRING amount DOUBLE", "A comma is missing"),
        ("id STRING,", "the name of a column is missing"),
        ("id STRING, ID INT", "there are two columns ID"),
        ("a-b INT", "back-quotes"),
        ("a ARRAY<INT", "'>' is missing in the type of a"),
        ("a MAP<INT>", "',' is missing"),
        ("a STRUCT<x INT", "'the end' follows x"),
        ("a DECIMAL(39)", "DECIMAL(39, 0) is not valid"),
        ("a DECIMAL(3,5)", "DECIMAL(3, 5) is not valid"),
        ("a DECIMAL(x)", "a number is missing"),
        ("a CHAR", "has no length"),
        ("a INT NOT", "NOT is not followed by"),
        ("a INT COMMENT x", "COMMENT has no text"),
        ("a INT) b", "')' follows a"),
    ],
)
def test_what_does_not_parse_says_where(text: str, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_ddl(text)
    assert words in str(refused.value)
    assert "⟨here⟩" in str(refused.value)
