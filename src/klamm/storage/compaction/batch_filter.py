"""Pass two of a compaction: which records of each batch stay, and the batch that holds them.

`BatchFilter` sees all batches from the start of the log to where the offset map ends, in order. It touches
no files.

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

from typing import NamedTuple

from klamm.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    Buffer,
)
from klamm.records.builder import assemble_batch
from klamm.records.encoding import encode_varint
from klamm.records.reader import RecordSpan
from klamm.storage.compaction.offset_map import SHORT_KEY_BYTES, OffsetMap, key_identity
from klamm.storage.compaction.record_scan import open_batch


class Retention(NamedTuple):
    """What `BatchFilter` needs to know besides the map."""

    now_ms: int
    delete_retention_ms: int
    bound_offset: int
    """The section that may be compacted ends before this offset."""
    last_producer_offsets: frozenset[tuple[int, int]]
    """(producer id, offset of its last record), of producers that the log still remembers."""


class BatchFilter:
    """Pass two: decides for each batch below the map's end, in order, what is written of it."""

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
        opened = open_batch(header, data) if header.base_offset < self._end_offset else None
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

    def _select(self, header: BatchHeader, records: list[RecordSpan]) -> tuple[list[RecordSpan], bool]:
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


def _rebuild(header: BatchHeader, payload: bytes, kept: list[RecordSpan], horizon_ms: int | None) -> Buffer:
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


def _shifted(payload: bytes, record: RecordSpan, shift_ms: int) -> bytes:
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
