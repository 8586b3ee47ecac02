"""Batches that a follower has fetched from its leader: checking them, and dividing them among segments.

Decisions only; the log carries them out. The leader has assigned offsets and epochs and has checked the
producers' sequences. What is checked here is whether the bytes arrived whole: the chain of headers and each
batch's CRC. Work is per batch, never per record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from klamm.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    parse_header,
)
from klamm.records.crc import crc32c
from klamm.storage.log_config import LogConfig
from klamm.storage.rolling import has_room
from klamm.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment
from klamm.storage.segments.time_index import ENTRY_BYTES as TIME_INDEX_ENTRY_BYTES

_BATCH_LENGTH = attrgetter("batch_length")
_MAX_TIMESTAMP = attrgetter("max_timestamp")


class ReplicatedAppend(NamedTuple):
    """What a follower has appended."""

    first_offset: int
    last_offset: int
    byte_count: int
    max_epoch: int
    """The largest leader epoch of the batches."""


class Run(NamedTuple):
    """Batches that lie one after the other and go into the same segment."""

    headers: Sequence[BatchHeader]
    byte_count: int
    base_offset: int
    """Of the segment. That of the active one, or one above: then the run begins a new segment."""


def check_batches(data: memoryview) -> list[BatchHeader]:
    """The headers of the whole batches in `data`; raises CorruptBatch.

    A last batch that is not whole is left out: a fetch ends at a limit of bytes.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(data)
    next_offset = 0
    while position + HEADER_SIZE <= end:
        header = parse_header(data, position)
        size = header.size
        if size < HEADER_SIZE or header.magic != MAGIC or header.last_offset_delta < 0:
            raise CorruptBatch(f"the leader sent bytes at position {position} that are not a batch")
        if position + size > end:
            break
        if header.base_offset < next_offset:
            raise CorruptBatch(f"the leader sent offset {header.base_offset} after {next_offset - 1}")
        if crc32c(data[position + ATTRIBUTES_POSITION : position + size]) != header.crc:
            raise CorruptBatch(f"the batch at offset {header.base_offset} does not match its CRC")
        headers.append(header)
        next_offset = header.last_offset + 1
        position += size
    return headers


def divide(
    headers: Sequence[BatchHeader],
    active: Segment,
    log_end_offset: int,
    config: LogConfig,
    jitter_ms: int,
    choose_jitter_ms: Callable[[int], int],
) -> list[Run]:
    """Divide batches by the rules that roll a leader's segments.

    A batch larger than segment.bytes has a segment to itself: the leader took it when the limit was higher.
    """
    byte_count = sum(map(_BATCH_LENGTH, headers)) + LOG_OVERHEAD * len(headers)
    filling = _Filling.of(active)
    if filling.has_room_for_all(headers, byte_count, config, jitter_ms):
        return [Run(headers, byte_count, filling.base_offset)]
    runs: list[Run] = []
    first, byte_count = 0, 0
    for place, header in enumerate(headers):
        last_offset = header.last_offset
        if header.size > config.segment_bytes:
            fits = filling.size == 0
        else:
            fits = has_room(filling, config, jitter_ms, header.size, last_offset, header.max_timestamp)
        if not fits:
            if place > first:
                runs.append(Run(headers[first:place], byte_count, filling.base_offset))
                log_end_offset = headers[place - 1].last_offset + 1
            filling = _Filling(log_end_offset)
            jitter_ms = choose_jitter_ms(log_end_offset)
            first, byte_count = place, 0
        filling.add(header, config.index_interval_bytes)
        byte_count += header.size
    runs.append(Run(headers[first:], byte_count, filling.base_offset))
    return runs


class _Filling:
    """How full a segment would be: the part of a segment that decides when it rolls."""

    __slots__ = ("base_offset", "bytes_since_index", "first_timestamp", "index_entries", "size")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.first_timestamp = NO_TIMESTAMP
        self.bytes_since_index = 0
        self.index_entries = 0

    @classmethod
    def of(cls, segment: Segment) -> _Filling:
        filling = cls(segment.base_offset)
        filling.size = segment.size
        filling.first_timestamp = segment.first_timestamp
        filling.bytes_since_index = segment.bytes_since_index
        filling.index_entries = max(len(segment.offset_index), len(segment.time_index))
        return filling

    def has_room_for_all(
        self, headers: Sequence[BatchHeader], byte_count: int, config: LogConfig, jitter_ms: int
    ) -> bool:
        """True if the segment surely does not roll before the last of these batches: one look instead of one
        for each batch, of which a follower that catches up gets thousands in a second."""
        return (
            0 < self.size <= config.segment_bytes - byte_count
            and headers[-1].last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            and max(map(_MAX_TIMESTAMP, headers)) - self.first_timestamp <= config.roll_ms - jitter_ms
            and self.index_entries + len(headers) < config.segment_index_bytes // TIME_INDEX_ENTRY_BYTES
        )

    def has_index_room(self, limit_bytes: int) -> bool:
        return self.index_entries < limit_bytes // TIME_INDEX_ENTRY_BYTES - 1

    def add(self, header: BatchHeader, index_interval_bytes: int) -> None:
        if self.size == 0:
            self.first_timestamp = header.max_timestamp
        if self.bytes_since_index > index_interval_bytes:
            self.index_entries += 1
            self.bytes_since_index = 0
        self.bytes_since_index += header.size
        self.size += header.size
