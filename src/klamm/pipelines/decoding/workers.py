"""What decoders in Python workers have in common: from a column of values to a column of structs.

A value that cannot be decoded gives a struct of nulls and an error; it never fails the batch that it is in.
What does is a decoder that lacks something of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from klamm.pipelines.errors import DecoderUnavailable
from klamm.pipelines.schemas.resolving import ERROR_COLUMN

CONFLUENT_HEADER_BYTES = 5
"""Confluent's framing: a zero, and the id of the schema in four bytes."""

MOST_ERROR_CHARACTERS = 500
"""An error's text travels in a header: a library's text about a large value is cut."""


class NotDecodable(Exception):
    """What is wrong with one value, in words."""


def struct_udf(schema: StructType, make_reader: Callable[[], Callable[[bytes], dict[str, Any]]]) -> Any:
    """A function of columns: values to structs of `schema` and ERROR_COLUMN.

    `make_reader` is called in each worker, once per batch: it keeps what is dear to make.
    """
    result = StructType([*schema.fields, StructField(ERROR_COLUMN, StringType())])
    arrow_type = to_arrow_type(result, timezone="UTC")

    def decode_batch(values: pa.Array) -> pa.Array:
        return read_values(values, make_reader(), arrow_type)

    # Spark takes the same call twice where a struct is spread, unless it may not be repeated.
    udf = arrow_udf(decode_batch, returnType=result)  # type: ignore[call-overload]
    return udf.asNondeterministic()


def read_values(
    values: pa.Array, read: Callable[[bytes], dict[str, Any]], arrow_type: pa.DataType
) -> pa.Array:
    rows: list[dict[str, Any] | None] = []
    for value in values.to_pylist():
        rows.append(None if value is None else _row(read, value))
    try:
        return pa.array(rows, type=arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # A number too large for its column, or the like: find out which rows it is.
        return pa.array([_holding(row, arrow_type) for row in rows], type=arrow_type)


def _row(read: Callable[[bytes], dict[str, Any]], value: bytes) -> dict[str, Any]:
    try:
        return read(value)
    except DecoderUnavailable:
        raise
    except Exception as error:  # decoders raise whatever they trip over in foreign bytes
        return {ERROR_COLUMN: _sentence(error)}


def _holding(row: dict[str, Any] | None, arrow_type: pa.DataType) -> dict[str, Any] | None:
    try:
        pa.array([row], type=arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return {ERROR_COLUMN: f"the value does not fit its columns: {_sentence(error)}"}
    return row


def _sentence(error: Exception) -> str:
    text = str(error) if isinstance(error, NotDecodable) else f"{type(error).__name__}: {error}".rstrip(": ")
    return text[:MOST_ERROR_CHARACTERS]


def confluent_parts(value: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows."""
    if len(value) < CONFLUENT_HEADER_BYTES or value[0] != 0:
        raise NotDecodable(
            "the value does not begin with a zero and the id of its schema (framing=confluent)"
        )
    return int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big"), value[CONFLUENT_HEADER_BYTES:]


ColumnFunction = Callable[[Column], Column]
