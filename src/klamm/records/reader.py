"""Reading the records inside a batch, for the few places of the broker that must open one.

`iter_records` makes a Python object per record: for loading group state, time look-ups, tools and tests.
`iter_spans` makes none of headers and values: compaction keeps or drops records as byte ranges.
All lengths are checked against the bytes that are there; malformed records raise `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from klamm.records.batch import Buffer, CorruptBatch, parse_header
from klamm.records.compression import DECOMPRESSED_LIMIT_BYTES
from klamm.records.decoding import Headers as Headers
from klamm.records.decoding import decode_records, decode_varint
from klamm.records.decoding import open_payload as open_payload


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


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES) -> Iterator[Record]:
    """The records of one whole batch, with absolute offsets and timestamps. All are read at the first."""
    decoded = decode_records(parse_header(batch), open_payload(batch, limit))
    yield from map(tuple.__new__, repeat(Record), zip(*decoded, strict=False))


def iter_spans(payload: Buffer, records_count: int) -> Iterator[RecordSpan]:
    """The records of an opened payload as byte ranges."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    position = 0
    try:
        for _ in range(records_count):
            start = position
            length, position = decode_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise CorruptBatch("a record is longer than its batch")
            timestamp_delta, position = decode_varint(data, position + 1)
            offset_delta, position = decode_varint(data, position)
            key, position = _nullable_bytes(data, position, end)
            value_length, position = decode_varint(data, position)
            yield RecordSpan(start, end, offset_delta, timestamp_delta, key, value_length >= 0)
            position = end
    except IndexError as error:
        raise CorruptBatch("a record ends before its fields do") from error


def _nullable_bytes(data: bytes, position: int, record_end: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > record_end:
        raise CorruptBatch("a key or value is longer than its record")
    return data[position:end], end
