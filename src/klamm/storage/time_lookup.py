"""From a timestamp to an offset: time index, offset index, batch headers, and at last one batch opened.

Blocks, so it runs in threads. The one batch is opened because its header knows only the largest of its
timestamps, not which record has it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from klamm.records.batch import NO_TIMESTAMP, BatchHeader
from klamm.records.reader import iter_records
from klamm.storage.segments.scanning import iter_headers, read_batch
from klamm.storage.segments.segment import Segment


class TimestampOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def find_first_at_or_after(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """The first record with a timestamp not before `timestamp`."""
    for segment in segments:
        if segment.size == 0 or segment.largest_timestamp() < timestamp:
            continue
        found = _search(segment, timestamp, log_start_offset)
        if found is not None:
            return found
    return None


def find_max_timestamp(segments: Sequence[Segment], log_start_offset: int) -> TimestampOffset | None:
    """The first record that has the largest timestamp of all."""
    first = bisect_right(segments, log_start_offset, key=attrgetter("base_offset")) - 1
    segments = segments[max(first, 0) :]
    largest = [segment.largest_timestamp() for segment in segments]
    found = find_first_at_or_after(segments, max(largest), log_start_offset)
    if found is None:
        # The record that has it was deleted, but its segment is still there for the sake of later ones.
        largest[0] = _largest_timestamp_from(segments[0], log_start_offset)
        found = find_first_at_or_after(segments, max(largest), log_start_offset)
    return found if max(largest) != NO_TIMESTAMP else None


def _largest_timestamp_from(segment: Segment, offset: int) -> int:
    """Of the records not below `offset`; NO_TIMESTAMP if none has one. Reads the headers of all of them."""
    start = segment.locate(offset, may_block=True)
    if start is None:
        return NO_TIMESTAMP
    handle = segment.handle or segment.open_handle()
    largest = NO_TIMESTAMP
    for position, header in iter_headers(handle.fd, start, segment.size):
        timestamp = header.max_timestamp
        if header.base_offset < offset:
            batch = read_batch(handle.fd, position, header)
            timestamps = (record.timestamp for record in iter_records(batch) if record.offset >= offset)
            timestamp = max(timestamps, default=NO_TIMESTAMP)
        largest = max(largest, timestamp)
    return largest


def _search(segment: Segment, timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    indexed_offset = segment.base_offset + segment.time_index.lookup(timestamp)
    start = segment.locate(max(indexed_offset, log_start_offset), may_block=True)
    if start is None:
        return None
    handle = segment.handle or segment.open_handle()
    for position, header in iter_headers(handle.fd, start, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= log_start_offset:
            batch = read_batch(handle.fd, position, header)
            found = _open_batch(batch, header, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def _open_batch(
    batch: bytes, header: BatchHeader, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    for record in iter_records(batch):
        if record.timestamp >= timestamp and record.offset >= log_start_offset:
            return TimestampOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None
