"""The statistics of a Parquet file, as Delta's log has them: rows, and each column's least and greatest
value. A core.

Readers use them to skip files. A column without statistics is always read, so leaving one out costs time and
never rows. Nested and binary columns are left out. NaN does not count for bounds, as in Parquet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

MOST_COLUMNS = 32
"""So many columns have statistics, the first ones, as in Delta's own writers: the log stays small."""

MOST_CHARACTERS = 32
"""Longer texts are cut: the least value downwards, the greatest upwards."""

_AFTER_ALL = "\U0010ffff"
"""The last character there is. Behind a cut text it makes a bound above all texts that begin like it."""


def statistics(metadata: Any, schema: pa.Schema) -> str:
    """The statistics of a file as JSON. `metadata` is what pyarrow says of the file, `schema` its columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = _columns(metadata)
    for field in list(schema)[:MOST_COLUMNS]:
        index = columns.get(field.name)
        if index is None:  # a nested column has several below it
            continue
        groups = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
        found = [group.statistics for group in groups]
        if not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        told = [each for each, group in zip(found, groups, strict=True) if each.null_count < group.num_values]
        if not told or not _is_ordered(field.type) or not all(each.has_min_max for each in told):
            continue
        bounds = min(each.min for each in told), max(each.max for each in told)
        if all(map(_is_exact_in_json, bounds)):
            least[field.name], greatest[field.name] = _lower(bounds[0]), _upper(bounds[1])
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": least,
            "maxValues": greatest,
            "nullCount": nulls,
        },
        separators=(",", ":"),
    )


def _columns(metadata: Any) -> Mapping[str, int]:
    """The index of each top-level column that is not nested."""
    schema = metadata.schema
    return {schema.column(index).path: index for index in range(metadata.num_columns)}


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _is_exact_in_json(value: Any) -> bool:
    """False for infinity, and for decimals that a float would round: a rounded bound could hide rows."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, Decimal) or Decimal(str(float(value))) == value


def _lower(value: Any) -> Any:
    match value:
        case datetime():
            return _time(value.replace(microsecond=value.microsecond // 1000 * 1000))
        case date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == int(value) else float(value)
        case str():
            return value[:MOST_CHARACTERS]
        case _:
            return value


def _upper(value: Any) -> Any:
    match value:
        case datetime():
            above = value + timedelta(milliseconds=1) if value.microsecond % 1000 else value
            return _lower(above)
        case str() if len(value) > MOST_CHARACTERS:
            return value[:MOST_CHARACTERS] + _AFTER_ALL
        case _:
            return _lower(value)


def _time(value: datetime) -> str:
    """With milliseconds, and with a Z where the time has a zone."""
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
