"""Reading the records inside a batch, for the few places that must open one.

`iter_records` makes a Python object per record: for loading group state, time look-ups, tools and tests.
`iter_spans` makes none of headers and values: compaction keeps or drops records as byte ranges.
All lengths are checked against the bytes that are there; malformed records raise `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from klamm.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    Buffer,
    CorruptBatch,
    parse_header,
)
from klamm.records.compression import DECOMPRESSED_LIMIT_BYTES, decompress

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
_MAX_VARINT_BITS = 70


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordSpan(NamedTuple):
    """Where one record lies in a batch's opened payload, with what compaction asks about."""

    start: int
    end: int
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


def open_payload(batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES) -> memoryview:
    """The records of one whole batch, decompressed if need be."""
    header = parse_header(batch)
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    codec = header.attributes & COMPRESSION_MASK
    return memoryview(decompress(codec, payload, limit)) if codec else payload


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES) -> Iterator[Record]:
    """The records of one whole batch, with absolute offsets and timestamps."""
    header = parse_header(batch)
    payload = bytes(open_payload(batch, limit))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_FLAG else None
    base_timestamp = header.base_timestamp
    base_offset = header.base_offset
    position = 0
    try:
        for _ in range(header.records_count):
            length, position = _varint(payload, position)
            end = position + length
            if length < 0 or end > len(payload):
                raise CorruptBatch("a record is longer than its batch")
            timestamp_delta, position = _varint(payload, position + 1)  # skip the unused attributes
            offset_delta, position = _varint(payload, position)
            key, position = _nullable_bytes(payload, position, end)
            value, position = _nullable_bytes(payload, position, end)
            headers, position = _headers(payload, position, end)
            if position != end:
                raise CorruptBatch("a record's length contradicts its fields")
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch("a record ends before its fields do") from error
    if position != len(payload):
        raise CorruptBatch(f"{len(payload) - position} bytes follow the batch's last record")


def iter_spans(payload: Buffer, records_count: int) -> Iterator[RecordSpan]:
    """The records of an opened payload as byte ranges."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    position = 0
    try:
        for _ in range(records_count):
            start = position
            length, position = _varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise CorruptBatch("a record is longer than its batch")
            timestamp_delta, position = _varint(data, position + 1)
            offset_delta, position = _varint(data, position)
            key, position = _nullable_bytes(data, position, end)
            value_length, position = _varint(data, position)
            yield RecordSpan(start, end, offset_delta, timestamp_delta, key, value_length >= 0)
            position = end
    except IndexError as error:
        raise CorruptBatch("a record ends before its fields do") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number of variable length, and where it ends."""
    byte = data[position]
    if byte < 0x80:  # nearly all of them
        return (byte >> 1) ^ -(byte & 1), position + 1
    number = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
        if shift >= _MAX_VARINT_BITS:
            raise CorruptBatch("a number in a record is longer than 64 bits")


def _nullable_bytes(data: bytes, position: int, record_end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > record_end:
        raise CorruptBatch("a key or value is longer than its record")
    return data[position:end], end


def _headers(data: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    count, position = _varint(data, position)
    if count == 0:
        return (), position
    if count < 0 or count > record_end - position:
        raise CorruptBatch(f"a record says it has {count} headers")
    headers = []
    for _ in range(count):
        name, position = _nullable_bytes(data, position, record_end)
        if name is None:
            raise CorruptBatch("a record header has no name")
        value, position = _nullable_bytes(data, position, record_end)
        headers.append((name.decode(), value))
    return tuple(headers), position
