"""Compaction of a log: which records stay, and the batches that hold them.

The core of it, without files. Pass one walks the batches of the dirty section, those since the last
compaction, and builds an `OffsetMap`: for each key the offset of its last record. Pass two walks all
batches from the start of the log to where the map reaches, and a `BatchFilter` says what becomes of each.

Rules, which are Kafka's:
- A record stays if no later record of its key is in the map. Records keep their offsets; batches keep
  their base and last offset, producer, sequence, codec and timestamps. A batch that loses nothing stays
  byte for byte as it was.
- A tombstone (null value) that stays gets a date: the delete horizon, `delete.retention.ms` after the
  compaction that first saw it, written as the batch's base timestamp under a flag in its attributes. A
  compaction after that date drops it.
- A batch that loses all its records goes, except the last one of a producer, which holds the producer's
  sequence, and the last one before the section that may not be compacted, which holds the end of the
  offsets: these stay as headers without records.
- Records without a key go: a compacted topic takes none, they are from before it was compacted.
- Whatever is not understood stays whole: control batches, transactional ones (nothing here knows which
  of them were aborted), batches that are damaged inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from klamm.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    CorruptBatch,
    compute_crc,
)
from klamm.records.builder import assemble_batch
from klamm.records.compression import decompress
from klamm.records.decoding import read_zigzag
from klamm.records.encoding import encode_varint

SHORT_KEY_BYTES = 47
"""Keys up to here are their own identity: with the object around it, 80 bytes."""
DIGEST_BYTES = 16
MAP_ENTRY_BYTES = 192
"""What one key may cost the map: 80 for the key, 32 for the offset, up to 80 for its place in the dict,
which doubles when it is full."""

_NEVER_TOUCHED = CONTROL_FLAG | TRANSACTIONAL_FLAG

KeyIdentity: TypeAlias = bytes | int
ScannedRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bool]
"""Start and end in the payload, offset delta, timestamp delta, key, whether it has a value.

A plain tuple: compaction makes one per record, and a named one takes twice as long."""
BatchOnDisk: TypeAlias = tuple[BatchHeader, memoryview]


class OffsetMap(NamedTuple):
    offsets: dict[KeyIdentity, int]
    end_offset: int
    """Records from here on are not in the map, because the section ended or the map was full."""


class Retention(NamedTuple):
    """What `BatchFilter` needs to know besides the map."""

    now_ms: int
    delete_retention_ms: int
    bound_offset: int
    """The section that may be compacted ends before this offset."""
    last_producer_offsets: frozenset[tuple[int, int]]
    """(producer id, offset of its last record), of producers that the log still remembers."""


def key_identity(key: bytes) -> KeyIdentity:
    """What stands for a key in the map: bounded in size. The digest is a number, so it equals no key."""
    if len(key) <= SHORT_KEY_BYTES:
        return key
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest(), "big")


def build_offset_map(batches: Iterable[BatchOnDisk], first_dirty_offset: int, limit_bytes: int) -> OffsetMap:
    """Pass one, over the batches that hold offsets from `first_dirty_offset` on."""
    capacity = max(1, limit_bytes // MAP_ENTRY_BYTES)
    offsets: dict[KeyIdentity, int] = {}
    end_offset = first_dirty_offset
    for header, data in batches:
        opened = _open(header, data)
        if opened is not None:
            full_at = _map_records(offsets, header.base_offset, opened.records, first_dirty_offset, capacity)
            if full_at is not None:
                return OffsetMap(offsets, full_at)
        end_offset = max(end_offset, header.last_offset + 1)
    return OffsetMap(offsets, end_offset)


def _map_records(
    offsets: dict[KeyIdentity, int],
    base_offset: int,
    records: list[ScannedRecord],
    first_dirty_offset: int,
    capacity: int,
) -> int | None:
    """Returns the offset that found the map full, if one did."""
    may_fill_up = len(offsets) + len(records) > capacity
    for _, _, offset_delta, _, key, _ in records:
        offset = base_offset + offset_delta
        if key is None or offset < first_dirty_offset:
            continue
        identity = key if len(key) <= SHORT_KEY_BYTES else key_identity(key)
        if may_fill_up and len(offsets) >= capacity and identity not in offsets:
            return offset
        offsets[identity] = offset
    return None


class _Opened(NamedTuple):
    payload: bytes
    records: list[ScannedRecord]


def _open(header: BatchHeader, data: memoryview) -> _Opened | None:
    """None for a batch that compaction leaves alone."""
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
    return _Opened(payload, records)


class BatchFilter:
    """Pass two: the fate of each batch below the map's end, in order."""

    def __init__(self, offset_map: OffsetMap, retention: Retention) -> None:
        self._offsets = offset_map.offsets
        self._end_offset = offset_map.end_offset
        self._retention = retention
        self.records_read = 0
        self.records_kept = 0
        self.records_without_key = 0

    def apply(self, header: BatchHeader, data: memoryview) -> Buffer | None:
        """The batch to write: `data` itself if nothing changes; None if nothing is left."""
        self.records_read += header.records_count
        opened = _open(header, data) if header.base_offset < self._end_offset else None
        if opened is None:
            self.records_kept += header.records_count
            return data
        kept, has_tombstones = self._select(header, opened.records)
        self.records_kept += len(kept)
        if not kept:
            return self._emptied(header, data)
        horizon_ms = None
        if has_tombstones and header.delete_horizon_ms is None and header.last_offset < self._end_offset:
            horizon_ms = self._retention.now_ms + self._retention.delete_retention_ms
        if horizon_ms is None and len(kept) == len(opened.records):
            return data
        return _rebuild(header, opened.payload, kept, horizon_ms)

    def _select(self, header: BatchHeader, records: list[ScannedRecord]) -> tuple[list[ScannedRecord], bool]:
        """The records that stay, and whether one of them is a tombstone that compaction has seen."""
        horizon_ms = header.delete_horizon_ms
        drops_tombstones = horizon_ms is not None and horizon_ms <= self._retention.now_ms
        last_offset_of = self._offsets.get
        base_offset = header.base_offset
        end_offset = self._end_offset
        has_tombstones = False
        kept = []
        for record in records:
            offset = base_offset + record[2]
            if offset < end_offset:
                key = record[4]
                if key is None:
                    self.records_without_key += 1
                    continue
                identity = key if len(key) <= SHORT_KEY_BYTES else key_identity(key)
                if last_offset_of(identity, -1) > offset:
                    continue
                if not record[5]:
                    if drops_tombstones:
                        continue
                    has_tombstones = True
            kept.append(record)
        return kept, has_tombstones

    def _emptied(self, header: BatchHeader, data: memoryview) -> Buffer | None:
        is_last_of_producer = (
            header.producer_id,
            header.last_offset,
        ) in self._retention.last_producer_offsets
        if not is_last_of_producer and header.last_offset + 1 != self._retention.bound_offset:
            return None
        if header.records_count == 0:
            return data
        return assemble_batch(
            b"",
            records_count=0,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            leader_epoch=header.partition_leader_epoch,
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_FLAG),
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )


def _rebuild(
    header: BatchHeader, payload: bytes, kept: list[ScannedRecord], horizon_ms: int | None
) -> Buffer:
    """The batch with only the records `kept`; with `horizon_ms`, dated by it."""
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if horizon_ms is None:
        body = b"".join([payload[record[0] : record[1]] for record in kept])
    else:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = horizon_ms
        body = b"".join([_shifted(payload, record, header.base_timestamp - horizon_ms) for record in kept])
    max_timestamp = header.max_timestamp
    if not attributes & LOG_APPEND_TIME_FLAG:
        max_timestamp = header.base_timestamp + max(record[3] for record in kept)
    return assemble_batch(
        body,
        records_count=len(kept),
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _shifted(payload: bytes, record: ScannedRecord, shift_ms: int) -> bytes:
    """The record encoded again with a timestamp delta that is `shift_ms` larger."""
    start, end, _, timestamp_delta, _, _ = record
    attributes_at = _after_varint(payload, start)
    rest_at = _after_varint(payload, attributes_at + 1)
    body = payload[attributes_at : attributes_at + 1] + encode_varint(timestamp_delta + shift_ms)
    return encode_varint(len(body) + end - rest_at) + body + payload[rest_at:end]


def _after_varint(payload: bytes, position: int) -> int:
    while payload[position] > 0x7F:
        position += 1
    return position + 1


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
