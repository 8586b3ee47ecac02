"""Encodes records into the payload of a batch, for a producer's `send`: many small parts, one join.

Deltas are relative to the first record: its timestamp is the batch's base timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from klamm.records.decoding import NAME_ERRORS, Headers

_TABLE_SIZE = 8192
"""Numbers below this have one or two bytes: lengths of common keys and values, offset deltas, short time
deltas."""


def encode_varint(number: int) -> bytes:
    """A signed number of up to 64 bits in zigzag form."""
    zigzag = (number << 1) ^ (number >> 63)
    output = bytearray()
    while zigzag > 0x7F:
        output.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    output.append(zigzag)
    return bytes(output)


_VARINTS = tuple(encode_varint(number) for number in range(_TABLE_SIZE))
_NULL = encode_varint(-1)
_NO_HEADERS = encode_varint(0)

_SOLE_START = b"\0\0\0" + _NULL
"""Attributes, both deltas and the key of a record that is the first of its batch and has no key."""


def encode_records(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None = None,
    *,
    offset_deltas: Iterable[int] | None = None,
) -> bytes:
    """The payload of a batch of these records. If `keys` or `headers` is None, no record has any.

    Keys and values are bytes, or any buffer whose `len` counts bytes. Without `offset_deltas` the offsets
    have no gaps, as those of a producer; compaction leaves gaps and passes `offset_deltas`.
    """
    if keys is None and headers is None and len(values) == 1 and offset_deltas is None:
        return _encode_sole_value(values[0])
    table = _VARINTS
    base_timestamp = timestamps[0]
    if offset_deltas is not None:
        offsets: Iterable[bytes] = map(_varint, offset_deltas)
    elif len(values) <= _TABLE_SIZE:
        offsets = table
    else:
        offsets = map(_varint, range(len(values)))
    if keys is None and headers is None:
        return _encode_values(values, timestamps, offsets)
    rows = zip(
        values,
        repeat(None) if keys is None else keys,
        timestamps,
        offsets,
        repeat(()) if headers is None else headers,
        strict=False,
    )
    parts: list[bytes] = []
    for value, key, timestamp, offset, pairs in rows:
        delta = timestamp - base_timestamp
        time = table[delta] if 0 <= delta < _TABLE_SIZE else encode_varint(delta)
        if key is None:
            key_size = _NULL
            key = b""
            size = 1
        else:
            size = len(key)
            key_size = table[size] if size < _TABLE_SIZE else encode_varint(size)
            size += len(key_size)
        if value is None:
            value_size = _NULL
            value = b""
            size += 1
        else:
            length = len(value)
            value_size = table[length] if length < _TABLE_SIZE else encode_varint(length)
            size += length + len(value_size)
        tail = _encode_headers(pairs) if pairs else _NO_HEADERS
        size += 1 + len(time) + len(offset) + len(tail)
        record_size = table[size] if size < _TABLE_SIZE else encode_varint(size)
        parts += (record_size, b"\0", time, offset, key_size, key, value_size, value, tail)
    return b"".join(parts)


def _encode_sole_value(value: bytes | None) -> bytes:
    """As `encode_records`, for one record without key and headers: producers that send record by record."""
    if value is None:
        value, value_size = b"", _NULL
    else:
        value_size = _varint(len(value))
    size = len(_SOLE_START) + len(value_size) + len(value) + len(_NO_HEADERS)
    return b"".join((_varint(size), _SOLE_START, value_size, value, _NO_HEADERS))


def _encode_values(
    values: Sequence[bytes | None], timestamps: Sequence[int], offsets: Iterable[bytes]
) -> bytes:
    """As `encode_records`, for records without keys and headers. The bytes between two values, except the
    offset, are made once and used again until they change."""
    base_timestamp = timestamps[0]
    last_time, last_length, last_offset_size = None, -2, 0
    time = head = tail = b""
    parts: list[bytes] = []
    for value, timestamp, offset in zip(values, timestamps, offsets, strict=False):
        if value is None:
            value, length = b"", -1
        else:
            length = len(value)
        if timestamp != last_time or length != last_length or len(offset) != last_offset_size:
            time = _varint(timestamp - base_timestamp)
            last_time, last_length, last_offset_size = timestamp, length, len(offset)
            tail = _NULL + _varint(length)
            size = 1 + len(time) + len(offset) + len(tail) + len(value) + 1
            head = _NO_HEADERS + _varint(size) + b"\0" + time  # begins with the end of the record before
        parts += (head, offset, tail, value)
    parts[0] = parts[0][len(_NO_HEADERS) :]
    parts.append(_NO_HEADERS)
    return b"".join(parts)


def _encode_headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8", NAME_ERRORS)
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < _TABLE_SIZE else encode_varint(number)
