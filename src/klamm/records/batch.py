"""The record batch (magic 2): its header, its CRC, and the few fields that a broker writes.

A batch is the same bytes on the wire, in memory and on disk. Brokers read the 61 bytes of the header and
leave the records alone. The CRC covers everything from the attributes on, so the base offset and the
leader epoch can be written without computing it again.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.crc import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Base offset and batch length: the bytes that the length field does not count."""
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35
PRODUCER_POSITION = 43
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 2**31 - 1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_ATTRIBUTES = struct.Struct(">h")
_INT64 = struct.Struct(">q")
_CRC = struct.Struct(">I")


class CorruptBatch(KafkaError):
    """Bytes that are not a valid batch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class BatchHeader(NamedTuple):
    """The header's fields in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap to 0 after 2^31-1."""
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which on compaction may drop this batch's tombstones; None if the batch has none.
        Compaction writes it as the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


def parse_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """Unpack a header without checking its fields. `buffer` must have 61 bytes from `offset` on."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, offset))


def compute_crc(batch: Buffer) -> int:
    """The CRC32C of `batch`, which holds exactly one batch."""
    return crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])


def patch_offset_and_epoch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the batch, and the buffer's size as its length."""
    _OFFSET_LENGTH_EPOCH.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch)


def patch_log_append_time(batch: bytearray | memoryview, attributes: int, log_append_time_ms: int) -> int:
    """Make the broker's time the timestamp of all records of the batch; returns the new CRC."""
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME_FLAG)
    _INT64.pack_into(batch, MAX_TIMESTAMP_POSITION, log_append_time_ms)
    crc = compute_crc(batch)
    _CRC.pack_into(batch, CRC_POSITION, crc)
    return crc
