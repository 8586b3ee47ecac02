"""Protobuf values, decoded by Google's library in Python workers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql.types import StructType

from klamm.pipelines.decoding.workers import ColumnFunction, NotDecodable, confluent_parts, struct_udf
from klamm.pipelines.definitions import Source
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.protobuf import (
    AS_JSON,
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    is_map,
    message_class,
    read_descriptors,
)
from klamm.pipelines.schemas.resolving import schema_file

Convert = Callable[[Any], Any]

_UNSIGNED_64 = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)


def decoder(source: Source, schema: StructType, project: Project) -> ColumnFunction:
    file = schema_file(project, source)
    assert file is not None, "a Protobuf source names its descriptor set"
    descriptors = read_descriptors(file)
    name = source.options["message"]
    is_framed = source.options.get("framing") == "confluent"

    def make_reader() -> Callable[[bytes], dict[str, Any]]:
        return reader(descriptors, name, is_framed)

    udf: ColumnFunction = struct_udf(schema, make_reader)
    return udf


# Cached: workers live long and have few sources, and making the classes takes tens of milliseconds.
@lru_cache(maxsize=32)
def reader(descriptors: bytes, name: str, is_framed: bool) -> Callable[[bytes], dict[str, Any]]:
    """A function that decodes one value."""
    message = message_class(descriptors, name)
    convert = _message(message.DESCRIPTOR)

    def read(value: bytes) -> dict[str, Any]:
        if is_framed:
            value = _without_indexes(confluent_parts(value)[1])
        try:
            parsed = message.FromString(value)
        except DecodeError:
            raise NotDecodable(f"the value is not a {name}") from None
        row: dict[str, Any] = convert(parsed)
        return row

    return read


def _without_indexes(value: bytes) -> bytes:
    """Skip the message indexes of Confluent's framing: a count, and as many numbers."""
    count, at = _varint(value, 0)
    for _ in range(count >> 1):  # zigzag
        _, at = _varint(value, at)
    return value[at:]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            raise NotDecodable("the value ends within the indexes of its message (framing=confluent)")
        byte = value[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


# ---- from messages to values for Arrow


def _message(descriptor: Descriptor) -> Convert:
    plan = [(field.name, _field(field), field.has_presence) for field in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else of(getattr(message, name))
            for name, of, has_presence in plan
        }

    return convert


def _field(field: FieldDescriptor) -> Convert:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _single(entry["key"]), _single(entry["value"])
        return lambda values: [(key(name), value(values[name])) for name in values]
    single = _single(field)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single(field: FieldDescriptor) -> Convert:
    if field.message_type is not None:
        return _nested(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return Decimal if field.type in _UNSIGNED_64 else _same


def _nested(descriptor: Descriptor) -> Convert:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
    if name == DURATION:
        return lambda time: time.seconds * 1_000_000 + int(time.nanos / 1000)
    if name in AS_JSON:
        return _json
    if name in WRAPPERS:
        wrapped = _single(descriptor.fields_by_name["value"])
        return lambda message: wrapped(message.value)
    return _message(descriptor)


def _json(message: Any) -> str:
    text: str = json_format.MessageToJson(message, indent=None)
    return text


def _same(value: Any) -> Any:
    return value
