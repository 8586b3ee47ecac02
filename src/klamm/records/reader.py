"""Reads the records of a batch, for the few places that must decompress one.

`iter_records` makes a Python object per record: for look-ups by time, a producer that splits a batch, tools
and tests. `iter_spans` makes no objects of values and headers: compaction keeps or drops records as byte
ranges, and a topic with rules for single records (it is compacted, or refuses old timestamps) needs only the
keys and timestamps of produced records. All lengths are checked against the bytes that are there; malformed
records raise `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple, TypeAlias

from klamm.records.batch import Buffer, CorruptBatch, parse_header
from klamm.records.compression import DECOMPRESSED_LIMIT_BYTES
from klamm.records.decoding import Headers as Headers
from klamm.records.decoding import decode_records, read_zigzag
from klamm.records.decoding import open_payload as open_payload


class StoredRecord(NamedTuple):
    """A record as a batch holds it; what applications get is a `Record` (client/results.py)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


RecordSpan: TypeAlias = tuple[int, int, int, int, bytes | None, bool]
"""One record in a batch's decompressed payload: the positions of its start and end, its offset delta and
timestamp delta, its key, and True if it has a value.

A plain tuple: compaction makes one per record, and a named tuple takes twice as long."""


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES) -> Iterator[StoredRecord]:
    """The records of one whole batch, with absolute offsets and timestamps. All are decoded before the first
    is yielded."""
    decoded = decode_records(parse_header(batch), open_payload(batch, limit))
    yield from map(tuple.__new__, repeat(StoredRecord), zip(*decoded, strict=False))


def iter_spans(payload: bytes, records_count: int) -> Iterator[RecordSpan]:
    """The records of a decompressed payload as byte ranges. Raises CorruptBatch if they do not fill it
    exactly.

    Compaction spends nearly all its time here, so numbers of one and two bytes are read in place.
    """
    size = len(payload)
    end = 0
    try:
        for _ in range(records_count):
            start = end
            number = payload[start]  # the record's length
            position = start + 1
            if number > 0x7F:
                high = payload[position]
                position += 1
                if high > 0x7F:
                    number, position = read_zigzag(payload, start)
                else:
                    number += (high << 7) - 0x80
            end = position + (number >> 1)
            if number & 1 or end > size:
                raise CorruptBatch("a record is longer than its batch")
            position += 1  # attributes, unused
            number = payload[position]
            position += 1
            if number > 0x7F:
                high = payload[position]
                position += 1
                if high > 0x7F:
                    number, position = read_zigzag(payload, position - 2)
                else:
                    number += (high << 7) - 0x80
            timestamp_delta = (number >> 1) ^ -(number & 1)
            number = payload[position]
            position += 1
            if number > 0x7F:
                high = payload[position]
                position += 1
                if high > 0x7F:
                    number, position = read_zigzag(payload, position - 2)
                else:
                    number += (high << 7) - 0x80
            offset_delta = (number >> 1) ^ -(number & 1)
            number = payload[position]  # the key's length
            position += 1
            if number > 0x7F:
                high = payload[position]
                position += 1
                if high > 0x7F:
                    number, position = read_zigzag(payload, position - 2)
                else:
                    number += (high << 7) - 0x80
            key = None
            if not number & 1:
                key_start = position
                position += number >> 1
                key = payload[key_start:position]
            if position >= end:
                raise CorruptBatch("a key is longer than its record")
            yield start, end, offset_delta, timestamp_delta, key, payload[position] != 1
    except IndexError as error:
        raise CorruptBatch("a record ends before its fields do") from error
    if end != size:
        raise CorruptBatch(f"{size - end} bytes follow the batch's last record")
