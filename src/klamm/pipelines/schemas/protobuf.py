"""Reads Protobuf descriptor sets: a message as a StructType.

    int32, sint32, sfixed32              INT
    uint32, fixed32, int64, sint64, sfixed64   BIGINT
    uint64, fixed64                      DECIMAL(20, 0)
    float, double, bool, string, bytes   FLOAT, DOUBLE, BOOLEAN, STRING, BINARY
    enum                                 STRING: the value's name, or its number if it has none
    message, repeated, map               STRUCT, ARRAY, MAP
    google.protobuf.Timestamp            TIMESTAMP
    google.protobuf.Duration             BIGINT, in microseconds
    google.protobuf.*Value               what they wrap, which may be null
    Struct, Value, ListValue, Any        STRING: as JSON

A field with presence (messages, `optional`, `oneof`) is null if it was not set. A message that contains
itself cannot be columns, and is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import types

from klamm.pipelines.errors import SchemaError

_PLAIN: Mapping[int, types.DataType] = {
    FieldDescriptor.TYPE_INT32: types.IntegerType(),
    FieldDescriptor.TYPE_SINT32: types.IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: types.IntegerType(),
    FieldDescriptor.TYPE_UINT32: types.LongType(),
    FieldDescriptor.TYPE_FIXED32: types.LongType(),
    FieldDescriptor.TYPE_INT64: types.LongType(),
    FieldDescriptor.TYPE_SINT64: types.LongType(),
    FieldDescriptor.TYPE_SFIXED64: types.LongType(),
    FieldDescriptor.TYPE_UINT64: types.DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: types.DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: types.FloatType(),
    FieldDescriptor.TYPE_DOUBLE: types.DoubleType(),
    FieldDescriptor.TYPE_BOOL: types.BooleanType(),
    FieldDescriptor.TYPE_STRING: types.StringType(),
    FieldDescriptor.TYPE_BYTES: types.BinaryType(),
    FieldDescriptor.TYPE_ENUM: types.StringType(),
}
_WELL_KNOWN = "google.protobuf."
WRAPPERS = frozenset(
    f"{_WELL_KNOWN}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
AS_JSON = frozenset(f"{_WELL_KNOWN}{kind}" for kind in ("Struct", "Value", "ListValue", "Any"))
TIMESTAMP = f"{_WELL_KNOWN}Timestamp"
DURATION = f"{_WELL_KNOWN}Duration"


def read_descriptors(file: Path) -> bytes:
    """The bytes of a descriptor set file. Workers get the bytes, as classes made of them cannot be
    pickled."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise SchemaError(
            f"the descriptor set {file} cannot be read: {error.strerror}",
            advice=f"Make it with `protoc --include_imports -o {file.name} …`",
        ) from None


def message_class(descriptors: bytes, name: str) -> Any:
    """The class of a message. Raises SchemaError if it is missing, or the bytes are not a descriptor set."""
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptors)
        for each in files.file:
            pool.Add(each)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        names = [f"{each.package}.{one.name}".lstrip(".") for each in files.file for one in each.message_type]
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        raise SchemaError(
            f"there is no message {name} in the descriptor set",
            advice=f"Did you mean {nearest[0]}?" if nearest else f"It has {', '.join(names) or 'none'}",
        ) from None
    except (DecodeError, TypeError) as error:
        raise SchemaError(
            f"the descriptor set is not complete: {error}",
            advice="Make it with `protoc --include_imports -o <file> …`, so that it has its imports",
        ) from None


def columns_of(descriptor: Descriptor, inside: tuple[str, ...] = ()) -> types.StructType:
    """The columns of a message; `inside` has the enclosing messages."""
    if descriptor.full_name in inside:
        raise SchemaError(
            f"the message {descriptor.full_name} contains itself",
            advice="Flatten it, or read it as binary",
        )
    within = (*inside, descriptor.full_name)
    return types.StructType(
        [types.StructField(field.name, _field(field, within)) for field in descriptor.fields]
    )


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _field(field: FieldDescriptor, inside: tuple[str, ...]) -> types.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return types.MapType(_single(entry["key"], inside), _single(entry["value"], inside))
    return types.ArrayType(_single(field, inside)) if field.is_repeated else _single(field, inside)


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> types.DataType:
    if field.message_type is None:
        return _PLAIN[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return types.TimestampType()
    if name == DURATION:
        return types.LongType()
    if name in AS_JSON:
        return types.StringType()
    if name in WRAPPERS:
        return _single(field.message_type.fields_by_name["value"], inside)
    return columns_of(field.message_type, inside)
