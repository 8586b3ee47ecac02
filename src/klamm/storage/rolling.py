"""When a segment is full or old, and a log goes on in a new one. Pure decisions; the log carries them out."""

from __future__ import annotations

from typing import Protocol

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.crc import crc32c
from klamm.storage.log_config import LogConfig
from klamm.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment


class Filled(Protocol):
    """What of a segment decides whether another batch may go into it."""

    base_offset: int
    size: int
    first_timestamp: int
    bytes_since_index: int

    def has_index_room(self, limit_bytes: int) -> bool:
        """True if both indexes have room for another entry."""


def has_room(
    active: Filled, config: LogConfig, jitter_ms: int, size: int, last_offset: int, max_timestamp: int
) -> bool:
    """True if a batch of `size` bytes may go into the active segment.

    Raises RECORD_LIST_TOO_LARGE if the batch is larger than any segment may be.
    """
    if (
        active.size + size <= config.segment_bytes
        and last_offset - active.base_offset <= MAX_RELATIVE_OFFSET
        and max_timestamp - active.first_timestamp <= config.roll_ms - jitter_ms
    ):
        is_index_due = active.bytes_since_index > config.index_interval_bytes
        if not is_index_due or active.has_index_room(config.segment_index_bytes):
            return True
    if size > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size} bytes, segment.bytes of its topic allows {config.segment_bytes}",
        )
    return active.size == 0


def is_old(active: Segment, config: LogConfig, jitter_ms: int, now_ms: int) -> bool:
    """True if the segment has records and is older than segment.ms."""
    since_ms = active.first_timestamp if active.first_timestamp >= 0 else active.created_ms
    return active.size > 0 and now_ms - since_ms > config.roll_ms - jitter_ms


def choose_jitter_ms(config: LogConfig, directory: str, base_offset: int) -> int:
    """How much earlier this log rolls, so that many logs do not roll at the same time."""
    limit_ms = config.segment_jitter_ms
    return crc32c(f"{directory}{base_offset}".encode()) % limit_ms if limit_ms > 0 else 0
