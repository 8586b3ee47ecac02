"""Checks a producer's batch before it is appended to a log.

The checks read only the header and compute the CRC: most batches are stored without being decompressed. Each
check has the error code that Kafka answers with.
"""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
)
from klamm.records.compression import Codec
from klamm.records.crc import crc32c

_FORBIDDEN_FLAGS = CONTROL_FLAG | LOG_APPEND_TIME_FLAG | DELETE_HORIZON_FLAG


def validate_produced(
    records: memoryview, *, max_message_bytes: int, zstd_allowed: bool = True
) -> BatchHeader:
    """Check that `records` is exactly one sound batch of magic 2 and return its header.

    `zstd_allowed` is False for Produce versions below 7, whose clients may not know that codec.
    """
    size = len(records)
    if size < HEADER_SIZE:
        raise _too_short(records)
    header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(records, 0))
    base_offset, length, _, magic, crc, attributes, last_delta, _, _, producer_id, _, sequence, count = header
    if magic != MAGIC:
        raise _wrong_magic(magic)
    if length + LOG_OVERHEAD != size:
        raise _wrong_length(length, size)
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, the topic's max.message.bytes allows {max_message_bytes}",
        )
    computed = crc32c(records[ATTRIBUTES_POSITION:])
    if computed != crc:
        raise CorruptBatch(f"the batch's CRC is {computed:#010x}, its header says {crc:#010x}")
    if base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {base_offset}")
    if count < 1 or last_delta + 1 != count:
        raise _invalid(f"the batch states {count} records, but its last offset delta is {last_delta}")
    if attributes & _FORBIDDEN_FLAGS:
        raise _forbidden_flag(attributes)
    if producer_id >= 0 and sequence < 0:
        raise _invalid(f"producer {producer_id} sent a batch with sequence {sequence}")
    codec = attributes & COMPRESSION_MASK
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and not zstd_allowed):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd needs Produce v7 or later: use a newer client or another codec"
            if codec == Codec.ZSTD
            else f"compression type {codec} is unknown: expected 0 to 4",
        )
    return header


def check_timestamps(header: BatchHeader, now_ms: int, before_max_ms: int, after_max_ms: int) -> None:
    """Refuse a batch whose header shows a time that is too far from the broker's clock.

    The header has the timestamp of the first record and the newest timestamp. For a topic that refuses old
    records, the broker checks each record before (replication/opening.py), because an older record may follow
    the first.
    """
    if header.max_timestamp - now_ms > after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms={after_max_ms} "
            f"after the broker's clock ({now_ms})",
        )
    if now_ms - header.base_timestamp > before_max_ms and header.base_timestamp != NO_TIMESTAMP:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is more than message.timestamp.before.max.ms={before_max_ms} "
            f"before the broker's clock ({now_ms})",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _too_short(records: memoryview) -> KafkaError:
    if len(records) == 0:
        return _invalid("a produce request must hold one record batch per partition, this one is empty")
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in (0, 1):
        return _wrong_magic(records[MAGIC_POSITION])
    return CorruptBatch(f"{len(records)} bytes are too few for a record batch")


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return _invalid(
            f"message format v{magic} is not supported; use a client that writes record batches (v2)"
        )
    return CorruptBatch(f"magic {magic} is not that of a record batch")


def _wrong_length(length: int, size: int) -> KafkaError:
    batch_size = length + LOG_OVERHEAD
    if HEADER_SIZE <= batch_size < size:
        return _invalid("a produce request must hold exactly one record batch per partition")
    return CorruptBatch(f"the batch's header says {batch_size} bytes, but there are {size}")


def _forbidden_flag(attributes: int) -> KafkaError:
    if attributes & CONTROL_FLAG:
        return _invalid("clients may not write control records")
    if attributes & LOG_APPEND_TIME_FLAG:
        return KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type to LogAppendTime"
        )
    return _invalid("producers may not set a delete horizon")
