"""Finding what a fetch asks for in a list of segments: a range of one segment's file, not its bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from klamm.storage.segments.segment import FileSlice, Segment
from klamm.storage.segments.segment_list import BASE_OFFSET


def find_slice(
    segments: Sequence[Segment],
    active_size: int,
    log_end_offset: int,
    offset: int,
    max_bytes: int,
    end_offset: int,
    must_return_one: bool,
    may_block: bool,
) -> FileSlice | None:
    """Whole batches from the one that contains `offset`, below `end_offset`, of at most `max_bytes`.

    `active_size` is the size of the last segment when the log ended at `log_end_offset`. With
    `must_return_one` the first batch comes even if it is larger. None if there is nothing to return. Raises
    WouldBlock unless `may_block`.
    """
    place = len(segments) - 1
    if offset < segments[place].base_offset:
        place = bisect_right(segments, offset, key=BASE_OFFSET) - 1
    while place < len(segments):
        segment = segments[place]
        start = segment.locate(offset, may_block)
        if start is not None:
            break
        place += 1  # compaction may leave nothing between the offset and the segment's end
    else:
        return None
    if place + 1 < len(segments):
        stop, next_offset = segment.size, segments[place + 1].base_offset
    else:
        stop, next_offset = active_size, log_end_offset
    if end_offset < next_offset:
        next_offset = end_offset
        end = segment.locate(end_offset, may_block)
        stop = stop if end is None else end
    if stop - start > max_bytes:
        stop, next_offset = segment.cut(start, start + max_bytes, may_block)
        if stop == start and must_return_one:
            stop = start + segment.batch_size_at(start, may_block)
            next_offset = -1
    if stop <= start:
        return None
    file_slice = segment.slice(start, stop - start, may_block)
    if next_offset >= 0:
        segment.note_cursor(next_offset, stop)
    return file_slice
