"""Where a follower's log is cut when its leader has other records, and the segment that is left there.

A cut takes bytes away from the end of a file, and nothing is ever written in their place: the log goes on in
a new segment. So whoever still sends a range of the old file sends the bytes that were there, or comes short,
and never a mixture of two leaders' batches (docs/adr/0019).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from klamm.records.batch import HEADER_SIZE, parse_header
from klamm.storage.log_config import LogConfig
from klamm.storage.recovery import walk_from
from klamm.storage.segments.segment import LOG_SUFFIX, CorruptSegment, Segment
from klamm.storage.segments.segment_list import BASE_OFFSET


class Cut(NamedTuple):
    """Where a log is cut."""

    end_offset: int
    """Where the log ends afterwards: below the wanted offset if a batch spans it, which goes as a whole."""
    segment: Segment | None
    """The segment that loses its end; None if the cut lies between segments."""
    position: int
    """The size that is left of it."""
    first_dropped: int
    """Segments with this base offset or a higher one are dropped."""


def find_cut(segments: Sequence[Segment], offset: int) -> Cut:
    """Where to cut everything at or above `offset`, which is above the first base offset. Blocks."""
    place = bisect_right(segments, offset, key=BASE_OFFSET) - 1
    segment = segments[place]
    position = segment.locate(offset, may_block=True)
    if position is None:
        return Cut(offset, None, 0, segment.base_offset + 1)
    header = parse_header(segment.read_range(position, HEADER_SIZE, may_block=True))
    end_offset = min(offset, header.base_offset)
    if position == 0:
        return Cut(end_offset, None, 0, segment.base_offset)
    return Cut(end_offset, segment, position, segment.base_offset + 1)


def shorten(segment: Segment, size: int, config: LogConfig) -> Segment:
    """`segment` as it will be when its file is cut to `size`; its index files must be complete. Blocks.

    Changes no file: the result can be read at once, and `cut_files` follows.
    """
    entries = [entry for entry in segment.offset_index.entries() if entry[1] < size]
    last = entries[-1] if entries else None
    last_indexed = last[0] if last else -1
    times = [time for time in segment.time_index.entries() if time[1] <= last_indexed]
    left = Segment(
        segment.directory,
        segment.base_offset,
        segment.open_files,
        size=size,
        index_entries=len(entries),
        time_index_entries=len(times),
        created_ms=segment.created_ms,
    )
    broken = walk_from(left, config, last).broken
    if broken is not None:
        raise CorruptSegment(f"{left.path(LOG_SUFFIX)}: {broken}")
    left.load_first_timestamp()
    return left


def cut_files(segment: Segment) -> None:
    """Cut the files of a segment that was made by `shorten`. On the disk when this returns."""
    segment.offset_index.truncate(len(segment.offset_index))
    segment.time_index.truncate(len(segment.time_index))
    segment.seal()
    segment.sync()
