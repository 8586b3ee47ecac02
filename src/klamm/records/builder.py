"""Builds batches: of producers, of compaction, and those that the broker itself writes (group state)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from klamm.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_POSITION,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_POSITION,
    TRANSACTIONAL_FLAG,
    Buffer,
    compute_crc,
)
from klamm.records.compression import Codec, compress
from klamm.records.encoding import encode_records
from klamm.records.reader import StoredRecord

_PRODUCER = struct.Struct(">qhi")


def number_records(pairs: Iterable[tuple[bytes | None, bytes | None]], timestamp: int) -> list[StoredRecord]:
    """Records with offsets 0, 1, … for `build_batch`."""
    return [StoredRecord(offset, timestamp, key, value) for offset, (key, value) in enumerate(pairs)]


def build_batch(
    records: Sequence[StoredRecord],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    is_control: bool = False,
    is_transactional: bool = False,
) -> bytearray:
    """One batch of `records`, whose offsets are absolute, ascending, and not below `base_offset`."""
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    payload = encode_records(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.headers for record in records],
        offset_deltas=[record.offset - base_offset for record in records],
    )
    attributes = codec | (CONTROL_FLAG if is_control else 0) | (TRANSACTIONAL_FLAG if is_transactional else 0)
    return assemble_batch(
        payload,
        records_count=len(records),
        base_offset=base_offset,
        last_offset_delta=records[-1].offset - base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        level=level,
    )


def assemble_batch(
    payload: Buffer,
    *,
    records_count: int,
    base_offset: int,
    last_offset_delta: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int = NO_TIMESTAMP,
    max_timestamp: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    level: int | None = None,
) -> bytearray:
    """A batch of records that are encoded already; compresses them with the codec that `attributes` name.

    Without records, it is the empty batch that compaction leaves to keep a producer's last sequence.
    """
    codec = attributes & COMPRESSION_MASK if records_count else Codec.NONE
    batch = with_room_for_header(payload, codec, level)
    seal_batch(
        batch,
        records_count=records_count,
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return batch


def with_room_for_header(payload: Buffer, codec: int, level: int | None = None) -> bytearray:
    """Encoded records, compressed if `codec` is not none, with room before them for the header of their
    batch."""
    data = compress(codec, payload, level) if codec else payload
    batch = bytearray(HEADER_SIZE + len(data))
    batch[HEADER_SIZE:] = data
    return batch


def seal_batch(
    batch: bytearray | memoryview,
    *,
    records_count: int,
    base_offset: int,
    last_offset_delta: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Write the header of a batch whose records are in place already."""
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    batch[CRC_POSITION : CRC_POSITION + 4] = compute_crc(batch).to_bytes(4, "big")


def stamp_producer(
    batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Write another producer id, epoch and sequence into a batch, as after a new producer epoch."""
    _PRODUCER.pack_into(batch, PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    batch[CRC_POSITION : CRC_POSITION + 4] = compute_crc(batch).to_bytes(4, "big")
