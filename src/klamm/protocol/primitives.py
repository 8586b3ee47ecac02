"""Unsigned varints and tagged fields: the parts of the flexible encoding that generated code calls.

Generated code handles the one-byte varint itself and comes here only for longer ones. Every reader may raise
IndexError where the input ends; `codec.decode` turns that into MalformedMessage.
"""

from __future__ import annotations

from functools import cache
from struct import Struct

from klamm.protocol.errors import MalformedMessage

Buffer = memoryview | bytes | bytearray

MAX_VARINT_BYTES = 5
"""An unsigned varint carries 32 bits, seven to a byte."""

ONE_BYTE_VARINTS = tuple(bytes((value,)) for value in range(128))

SHORT_ARRAY_LENGTH = 16
"""Arrays of integers shorter than this (replicas, ISR) use a struct made once; longer ones make their own."""


def read_uvarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """The unsigned varint at `offset`, and the offset after it."""
    first = buffer[offset]
    if first < 0x80:
        return first, offset + 1
    # Lengths of record sets nearly always take two or three bytes; spelt out, they take half the time.
    second = buffer[offset + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, offset + 2
    third = buffer[offset + 2]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, offset + 3
    value = first & 0x7F | (second & 0x7F) << 7 | (third & 0x7F) << 14
    for index in range(3, MAX_VARINT_BYTES):
        byte = buffer[offset + index]
        if byte < 0x80:
            return value | byte << 7 * index, offset + index + 1
        value |= (byte & 0x7F) << 7 * index
    raise MalformedMessage(f"a varint is longer than {MAX_VARINT_BYTES} bytes")


def encode_uvarint(value: int) -> bytes:
    if value < 0x80:
        return ONE_BYTE_VARINTS[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


MAX_TAGGED_FIELDS = 150
"""Tagged fields of one struct; Kafka's own have a handful. Skipping an unknown one takes time too."""


def skip_tagged_fields(buffer: Buffer, offset: int) -> int:
    """Skip a whole section of tagged fields, its count included; returns the offset after it."""
    limit = len(buffer)
    count, offset = read_uvarint(buffer, offset)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedMessage(f"a struct has {count} tagged fields; at most {MAX_TAGGED_FIELDS} are allowed")
    previous_tag = -1
    for _ in range(count):
        tag, offset = read_uvarint(buffer, offset)
        size, offset = read_uvarint(buffer, offset)
        if tag <= previous_tag:
            raise MalformedMessage(f"tagged field {tag} follows tagged field {previous_tag}")
        previous_tag = tag
        offset += size
        if offset > limit:
            raise MalformedMessage(f"tagged field {tag} of {size} bytes runs past the end of the message")
    return offset


class FixedArrays:
    """Structs for arrays of one fixed-width type, by length."""

    __slots__ = ("_code", "_short")

    def __init__(self, code: str) -> None:
        self._code = code
        self._short = tuple(Struct(">" + code * length) for length in range(SHORT_ARRAY_LENGTH))

    def __getitem__(self, length: int) -> Struct:
        if length < SHORT_ARRAY_LENGTH:
            return self._short[length]
        return Struct(f">{length}{self._code}" if len(self._code) == 1 else ">" + self._code * length)


@cache
def fixed_arrays(code: str) -> FixedArrays:
    return FixedArrays(code)
