"""What decoders in Python workers share: they turn a column of values into a column of structs.

A value that cannot be decoded gives a struct of nulls and an error, and never fails its batch. A decoder that
cannot work at all (DecoderUnavailable) does.
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
from pyspark_klamm.worker_memory import freeze_loaded_objects

CONFLUENT_HEADER_BYTES = 5
"""Confluent's framing: a zero byte, and the schema id in four bytes."""

MOST_ERROR_CHARACTERS = 500
"""The most characters of an error, which goes into a header."""


class NotDecodable(Exception):
    """A value cannot be decoded. The text says why."""


def struct_udf(schema: StructType, make_reader: Callable[[], Callable[[bytes], dict[str, Any]]]) -> Any:
    """A function from a column of values to a column of structs of `schema` and ERROR_COLUMN.

    `make_reader` is called in each worker, once per batch, and should cache what is expensive to make.
    """
    result = StructType([*schema.fields, StructField(ERROR_COLUMN, StringType())])
    arrow_type = to_arrow_type(result, timezone="UTC")

    def decode_batch(values: pa.Array) -> pa.Array:
        decoded = read_values(values, make_reader(), arrow_type)
        freeze_loaded_objects()
        return decoded

    # Spark would repeat the call for each field of the struct if it were deterministic.
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
        # For example a number too large for its column: find the rows.
        return pa.array([_holding(row, arrow_type) for row in rows], type=arrow_type)


def _row(read: Callable[[bytes], dict[str, Any]], value: bytes) -> dict[str, Any]:
    try:
        return read(value)
    except DecoderUnavailable:
        raise
    except Exception as error:  # decoders raise errors of any type on bytes that do not fit
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
    """The schema id, and the rest of the value."""
    if len(value) < CONFLUENT_HEADER_BYTES or value[0] != 0:
        raise NotDecodable("the value does not begin with a zero byte and a schema id (framing=confluent)")
    return int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big"), value[CONFLUENT_HEADER_BYTES:]


ColumnFunction = Callable[[Column], Column]
