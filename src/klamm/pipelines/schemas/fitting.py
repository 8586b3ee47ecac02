"""Checks whether a JSON value fits a schema, without Spark, for lint.

It follows what Spark's JSON reader does with each type. When a pipeline runs, the reader itself decides, and
records that do not fit go to the dead-letter topic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pyspark.sql import types

from klamm.pipelines.schemas.inference import is_date, is_timestamp

_BITS: Mapping[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_BOOLEAN_WORDS = frozenset({"t", "true", "y", "yes", "1", "f", "false", "n", "no", "0"})
_NUMBER_WORDS = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")


def misfits(
    value: object, data_type: types.DataType, path: str = "", *, own_time_formats: bool = False
) -> Iterator[str]:
    """Sentences about each part of a parsed JSON value that does not fit its type. Null fits every type.

    With `own_time_formats` dates and times are not checked, since the source has formats of its own for them.
    """
    if value is None or isinstance(data_type, types.StringType | types.VariantType):
        return
    if isinstance(data_type, types.StructType):
        if not isinstance(value, Mapping):
            yield f"{path or 'the value'} is {_shown(value)}, not an object"
            return
        for field in data_type:
            inner = f"{path}.{field.name}" if path else field.name
            yield from misfits(
                value.get(field.name), field.dataType, inner, own_time_formats=own_time_formats
            )
    elif isinstance(data_type, types.ArrayType):
        if not isinstance(value, list):
            yield f"{path} is {_shown(value)}, not an array"
            return
        for element in value:
            yield from misfits(element, data_type.elementType, f"{path}[]", own_time_formats=own_time_formats)
    elif isinstance(data_type, types.MapType):
        if not isinstance(value, Mapping):
            yield f"{path} is {_shown(value)}, not an object"
            return
        for key, inner_value in value.items():
            yield from misfits(
                inner_value, data_type.valueType, f"{path}.{key}", own_time_formats=own_time_formats
            )
    elif not _fits_plain(value, data_type, own_time_formats):
        yield f"{path} is {_shown(value)}, which does not fit {data_type.simpleString().upper()}"


def text_fits(text: str, data_type: types.DataType, *, own_time_formats: bool = False) -> bool:
    """True if Spark can cast a text to a type, as far as can be told without Spark."""
    text = text.strip()
    if isinstance(data_type, types.BooleanType):
        return text.lower() in _BOOLEAN_WORDS
    if isinstance(data_type, types.TimestampType | types.TimestampNTZType | types.DateType):
        return own_time_formats or is_timestamp(text) or is_date(text)
    if isinstance(data_type, types.NumericType):
        try:
            number = int(text) if isinstance(data_type, types.IntegralType) else float(text)
        except ValueError:
            return False
        return _fits_plain(number, data_type, own_time_formats)
    return True


def unknown_fields(value: object, data_type: types.DataType, path: str = "") -> Iterator[str]:
    """The paths of fields of a parsed JSON value that the schema does not have."""
    if isinstance(data_type, types.StructType) and isinstance(value, Mapping):
        known = {field.name: field for field in data_type}
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else str(name)
            if name in known:
                yield from unknown_fields(inner, known[name].dataType, inner_path)
            else:
                yield inner_path
    elif isinstance(data_type, types.ArrayType) and isinstance(value, list):
        for element in value:
            yield from unknown_fields(element, data_type.elementType, f"{path}[]")


def _fits_plain(value: object, data_type: types.DataType, own_time_formats: bool) -> bool:
    if isinstance(data_type, types.BooleanType):
        return isinstance(value, bool)
    if isinstance(data_type, types.BinaryType | types.CharType | types.VarcharType):
        return isinstance(value, str)
    if isinstance(data_type, types.TimestampType | types.TimestampNTZType):
        if isinstance(value, str):
            return own_time_formats or is_timestamp(value) or is_date(value)
        return isinstance(value, int) and not isinstance(value, bool)  # seconds since 1970
    if isinstance(data_type, types.DateType):
        return isinstance(value, str) and (own_time_formats or is_date(value))
    if isinstance(data_type, types.FloatType | types.DoubleType):
        return _is_number(value) or value in _NUMBER_WORDS
    if isinstance(data_type, types.DecimalType):
        return _is_number(value) and _fits_decimal(value, data_type)
    bits = _BITS.get(type(data_type))
    if bits is not None:
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        )
    return True  # a rare type: the reader will tell


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits_decimal(value: object, data_type: types.DecimalType) -> bool:
    assert isinstance(value, int | float)
    return math.isfinite(value) and abs(value) < 10 ** (data_type.precision - data_type.scale)


SHOWN_CHARACTERS = 40
"""The beginning of a value, enough to recognise it."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
