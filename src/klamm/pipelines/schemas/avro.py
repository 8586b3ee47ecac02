"""Reads .avsc files: the Avro schema as a StructType for Spark, and as a reader schema for fastavro.

    record, array, map, enum, fixed      STRUCT, ARRAY, MAP<STRING, …>, STRING, BINARY
    int, long, float, double             INT, BIGINT, FLOAT, DOUBLE
    boolean, string, bytes               BOOLEAN, STRING, BINARY
    date                                 DATE
    timestamp-millis, -micros            TIMESTAMP; the local- ones TIMESTAMP_NTZ
    decimal                              DECIMAL
    [null, x]                            x, which may be null
    [int, long], [float, double]         BIGINT, DOUBLE
    other unions                         STRING: the value as JSON

Other logical types become their base type: a uuid is a STRING, a time an INT or BIGINT. A record that
contains itself cannot be columns, and is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
from pyspark.sql import types

from klamm.pipelines.errors import SchemaError

_PLAIN: Mapping[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "string": types.StringType(),
    "null": types.StringType(),
}
_LOGICAL: Mapping[tuple[str, str], types.DataType] = {
    ("int", "date"): types.DateType(),
    ("long", "timestamp-millis"): types.TimestampType(),
    ("long", "timestamp-micros"): types.TimestampType(),
    ("long", "local-timestamp-millis"): types.TimestampNTZType(),
    ("long", "local-timestamp-micros"): types.TimestampNTZType(),
}
_MILLIS = frozenset({"timestamp-millis", "local-timestamp-millis"})


@dataclass(frozen=True)
class AvroSchema:
    """`columns` for Spark, `reader` for fastavro, and `writers` by their id in Confluent's framing. `name` is
    the name of the files."""

    name: str
    columns: types.StructType
    reader: dict[str, Any]
    writers: Mapping[int, dict[str, Any]]


def read_avro_schema(file: Path) -> AvroSchema:
    """The schema of an .avsc file.

    Files `<name>.<id>.avsc` beside it are writer schemas, by their id in Confluent's framing.
    """
    text = _read(file)
    columns = _to_spark(text, {}, ())
    if not isinstance(columns, types.StructType):
        raise SchemaError(f"the Avro schema {file} is not a record", advice="Wrap it into a record")
    writers = {}
    for other in sorted(file.parent.glob(f"{file.stem}.*.avsc")):
        number = other.name.removeprefix(f"{file.stem}.").removesuffix(".avsc")
        if number.isdecimal():
            writers[int(number)] = for_fastavro(_read(other))
    return AvroSchema(file.stem, columns, for_fastavro(text), writers)


def _read(file: Path) -> Any:
    try:
        text = json.loads(file.read_text(encoding="utf-8"))
        fastavro.parse_schema(text)
    except OSError as error:
        raise SchemaError(
            f"the Avro schema {file} cannot be read: {error.strerror}", advice="Create it, or name another"
        ) from None
    except (ValueError, fastavro.schema.SchemaParseException, KeyError, TypeError) as error:
        raise SchemaError(f"{file} is not a valid Avro schema: {error}", advice="Correct the file") from None
    return text


def _to_spark(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> types.DataType:
    """The Spark type of an Avro type. `named` has the types defined so far, `inside` the enclosing
    records."""
    if isinstance(schema, list):
        return _union(schema, named, inside)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema in inside:
            raise SchemaError(
                f"the Avro record {schema} contains itself",
                advice="Flatten it, or read it as binary",
            )
        return _to_spark(named[schema], named, inside)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _to_spark(kind, named, inside)
    if "name" in schema and kind in ("record", "error", "enum", "fixed"):
        for name in _names(schema):
            named[name] = schema
    return _by_kind(kind, schema, named, inside)


def _by_kind(kind: str, schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> types.DataType:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return types.DecimalType(min(int(schema["precision"]), 38), int(schema.get("scale", 0)))
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    if kind in ("record", "error"):
        within = (*inside, *_names(schema))
        fields = [(field["name"], _to_spark(field["type"], named, within)) for field in schema["fields"]]
        return types.StructType([types.StructField(name, data_type) for name, data_type in fields])
    if kind == "array":
        return types.ArrayType(_to_spark(schema["items"], named, inside))
    if kind == "map":
        return types.MapType(types.StringType(), _to_spark(schema["values"], named, inside))
    if kind == "enum":
        return types.StringType()
    if kind == "fixed":
        return types.BinaryType()
    return _to_spark(kind, named, inside)


def _names(schema: Any) -> list[str]:
    """The names by which a type can be referenced: with and without its namespace."""
    name = schema["name"]
    space = schema.get("namespace")
    return [name, f"{space}.{name}"] if space else [name, name.rpartition(".")[2]]


def _union(branches: list[Any], named: dict[str, Any], inside: tuple[str, ...]) -> types.DataType:
    found = [_to_spark(branch, named, inside) for branch in branches if branch != "null"]
    if len(found) == 1:
        return found[0]
    kinds = {type(each) for each in found}
    if found and kinds <= {types.IntegerType, types.LongType}:
        return types.LongType()
    if found and kinds <= {types.FloatType, types.DoubleType}:
        return types.DoubleType()
    return types.StringType()


def for_fastavro(schema: Any) -> Any:
    """The schema for fastavro, changed so that timestamps in microseconds are read as numbers, as Arrow has
    them, and not as a datetime object each. Milliseconds stay datetimes, since a column has one unit.
    """
    if isinstance(schema, list):
        return [for_fastavro(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: for_fastavro(value) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
    if "fields" in schema:
        made["fields"] = [for_fastavro(field) for field in schema["fields"]]
    if made.get("logicalType") not in (None, "decimal", *_MILLIS):
        del made["logicalType"]
    return made


# ---- unions that become JSON


Convert: TypeAlias = Callable[[Any], Any]


def json_unions(schema: Any) -> Convert | None:
    """A function that turns values of unions without a column type into JSON; None if there are none."""
    return _converter(schema, {})


def _converter(schema: Any, made: dict[str, Convert | None]) -> Convert | None:
    if isinstance(schema, list):
        return _union_converter(schema, made)
    if isinstance(schema, str):
        return made.get(schema)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _converter(kind, made)
    if kind in ("record", "error"):
        plan = [(field["name"], _converter(field["type"], made)) for field in schema["fields"]]
        changing = [(name, convert) for name, convert in plan if convert is not None]
        found = (lambda row: _changed(row, changing)) if changing else None
        made |= dict.fromkeys(_names(schema), found)
        return found
    if kind in ("array", "map"):
        return _container_converter(kind, _converter(schema["items" if kind == "array" else "values"], made))
    return None


def _container_converter(kind: str, inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    if kind == "array":
        return lambda values: [inner(value) for value in values]
    return lambda values: {key: inner(value) for key, value in values.items()}


def _union_converter(branches: list[Any], made: dict[str, Convert | None]) -> Convert | None:
    others = [branch for branch in branches if branch != "null"]
    if len(others) == 1:
        inner = _converter(others[0], made)
        return None if inner is None else lambda value: None if value is None else inner(value)
    kinds = {_bare(branch) for branch in others}
    if kinds <= {"int", "long"} or kinds <= {"float", "double"}:
        return None
    return _json_text


def _bare(schema: Any) -> str:
    """`{"type": "int"}` is the same as "int"."""
    is_wrapped = isinstance(schema, dict) and "logicalType" not in schema and isinstance(schema["type"], str)
    return str(schema["type"] if is_wrapped else schema)


def _changed(row: dict[str, Any], changing: list[tuple[str, Convert]]) -> dict[str, Any]:
    for name, convert in changing:
        row[name] = convert(row[name])
    return row


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=_as_text, ensure_ascii=False)


def _as_text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
