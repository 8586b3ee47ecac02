"""Protobuf values: with a message of a descriptor set, or field by field without any schema. A core.

Without a schema the wire format tells the number of each field and how its value is written, not what the
value means: bytes may be a text, a message or neither, and the first of these that fits is shown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from klamm.operating.errors import CannotDo
from klamm.operating.records.views.errors import Undecodable
from klamm.operating.records.views.text import decoded

MOST_DEPTH = 30
MOST_FIELDS = 50_000
MOST_DESCRIPTOR_BYTES = 5_000_000
HOW_TO_MAKE_ONE = "Make it with protoc --include_imports -o orders.desc orders.proto"

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


class ProtobufSchema:
    """A message of a descriptor set, as `protoc --include_imports -o set.desc orders.proto` writes it."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """Raises CannotDo for bytes that are no descriptor set, or a message that is not in it."""
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.message import DecodeError

        names = message_names(descriptors)
        if message not in names:
            raise CannotDo(
                f"there is no message {message} in the descriptor set", advice=f"It has {', '.join(names)}"
            )
        pool = descriptor_pool.DescriptorPool()
        try:
            for each in _file_set(descriptors).file:
                pool.Add(each)
            self._class: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
        except (DecodeError, TypeError, KeyError) as error:
            raise CannotDo(
                f"the descriptor set is not complete: {str(error)[:300]}",
                advice=HOW_TO_MAKE_ONE,
            ) from None
        self.name = message

    def decode(self, data: bytes) -> Any:
        """A document of dicts, lists and scalars. Raises Undecodable."""
        from google.protobuf import json_format

        message = self._class()
        try:
            message.ParseFromString(data)
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except Exception as error:  # of any type, for bytes that are no such message
            raise Undecodable(
                f"it is not a {self.name}: {str(error)[:300] or type(error).__name__}"
            ) from None


def message_names(descriptors: bytes) -> list[str]:
    """The messages in a descriptor set, those within others too. Raises CannotDo."""
    names: list[str] = []

    def collect(prefix: str, messages: Any) -> None:
        for each in messages:
            if not each.options.map_entry:
                names.append(f"{prefix}{each.name}")
                collect(f"{prefix}{each.name}.", each.nested_type)

    for file in _file_set(descriptors).file:
        collect(f"{file.package}." if file.package else "", file.message_type)
    if not names:
        raise CannotDo("this descriptor set has no messages", advice=HOW_TO_MAKE_ONE)
    return names


def _file_set(descriptors: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    if len(descriptors) > MOST_DESCRIPTOR_BYTES:
        raise CannotDo(
            f"the descriptor set has {len(descriptors):,} bytes: at most {MOST_DESCRIPTOR_BYTES:,} are read"
        )
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError:
        raise CannotDo(
            "this is not a descriptor set",
            advice=HOW_TO_MAKE_ONE,
        ) from None
    return files


def without_message_indexes(data: bytes) -> bytes:
    """The message after the indexes that serializers with a schema registry put before it: which message of
    the schema it is, a zero for the first. Raises Undecodable."""
    count, at = _varint(data, 0)
    if count == 0:
        return data[at:]
    for _ in range(min(count >> 1, MOST_DEPTH)):
        _, at = _varint(data, at)
    return data[at:]


def decode_raw(data: bytes) -> dict[str, Any]:
    """The fields of a message without its schema, by their numbers. Raises Undecodable."""
    return _message(data, 0, [MOST_FIELDS])


def _message(data: bytes, depth: int, left: list[int]) -> dict[str, Any]:
    if depth > MOST_DEPTH:
        raise Undecodable(f"it is nested more than {MOST_DEPTH} levels deep")
    found: dict[str, Any] = {}
    for number, value in _fields(data, depth, left):
        name = str(number)
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def _fields(data: bytes, depth: int, left: list[int]) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        left[0] -= 1
        if left[0] < 0:
            raise Undecodable(f"it has more than {MOST_FIELDS:,} fields")
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Undecodable(f"at byte {at} is no field of a Protobuf message: its number would be {number}")
        value: Any
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            piece = _piece(data, at, size, number)
            value, at = _fixed(piece), at + size
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = _guess(_piece(data, at, size, number), depth, left), at + size
        else:
            what = "a group" if kind in (_GROUP, _GROUP_END) else f"the unknown wire type {kind}"
            raise Undecodable(f"field {number} at byte {at} has {what}")
        yield number, value


def _guess(piece: bytes, depth: int, left: list[int]) -> Any:
    text = decoded(piece)
    if text is not None and (text.isprintable() or not piece):
        return text
    try:
        return _message(piece, depth + 1, left)
    except Undecodable:
        return piece if text is None else text


def _fixed(piece: bytes) -> Any:
    """Numbers of a fixed size are mostly floats; what would be an odd float is shown as an integer."""
    number = struct.unpack("<d" if len(piece) == 8 else "<f", piece)[0]
    if number == 0 or 1e-9 < abs(number) < 1e15:
        return number
    return int.from_bytes(piece, "little")


def _piece(data: bytes, at: int, size: int, number: int) -> bytes:
    if at + size > len(data):
        raise Undecodable(f"the value ends within field {number}")
    return data[at : at + size]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise Undecodable(f"at byte {at} is a number of more than 64 bits")
    raise Undecodable("the value ends within a number")
