"""Reading the records of a batch on disk, as far as compaction needs them: where each lies, and its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from klamm.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CorruptBatch,
    compute_crc,
)
from klamm.records.compression import decompress
from klamm.records.decoding import read_zigzag

_NEVER_TOUCHED = CONTROL_FLAG | TRANSACTIONAL_FLAG

ScannedRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bool]
"""Start and end in the payload, offset delta, timestamp delta, key, whether it has a value.

A plain tuple: compaction makes one per record, and a named one takes twice as long."""
BatchOnDisk: TypeAlias = tuple[BatchHeader, memoryview]


class OpenedBatch(NamedTuple):
    payload: bytes
    records: list[ScannedRecord]


def open_batch(header: BatchHeader, data: memoryview) -> OpenedBatch | None:
    """The payload and the records of a batch; None for a batch that compaction leaves as it is."""
    if header.attributes & _NEVER_TOUCHED or compute_crc(data) != header.crc:
        return None
    try:
        codec = header.attributes & COMPRESSION_MASK
        payload = bytes(decompress(codec, data[HEADER_SIZE:])) if codec else bytes(data[HEADER_SIZE:])
        records = scan_records(payload, header.records_count)
    except CorruptBatch:
        return None
    if records and (records[0][2] < 0 or records[-1][2] > header.last_offset_delta):
        return None
    return OpenedBatch(payload, records)


def scan_records(payload: bytes, records_count: int) -> list[ScannedRecord]:
    """The records of an opened payload as byte ranges; CorruptBatch if they contradict themselves.

    Nearly all of compaction's time goes here, so the numbers of one and two bytes are read in line.
    """
    records: list[ScannedRecord] = []
    append: Callable[[ScannedRecord], None] = records.append
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
            append((start, end, offset_delta, timestamp_delta, key, payload[position] != 1))
    except IndexError as error:
        raise CorruptBatch("a record ends before its fields do") from error
    if end != size:
        raise CorruptBatch(f"{size - end} bytes follow the batch's last record")
    return records
