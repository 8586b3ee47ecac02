"""Repairing a log's directory when it is opened.

- Leftovers of operations that a crash interrupted: `.deleted` and `.cleaned` files go, a `.swap` is
  completed: the segments that it replaces go first.
- Segments are listed; an index that is missing or has no whole entries is built anew.
- The last segment's end is found by a short scan from its last index entry, which also adds entries that
  are missing. After an unclean stop everything from the recovery point on is read and its CRCs checked;
  the log is cut at the first batch that is not whole.
- Leader epochs and producers are brought up to the end of the log.

`report` is called with a sentence for each repair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import NamedTuple

from klamm.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, compute_crc
from klamm.storage.checkpoints import CorruptCheckpoint
from klamm.storage.files import remove_if_there
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_config import LogConfig
from klamm.storage.producers.state import CorruptSnapshot, ProducerStates
from klamm.storage.segments import offset_index, time_index
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.scanning import BrokenChain, iter_batches, iter_headers
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_file,
)

DELETED_SUFFIX = ".deleted"
SWAP_SUFFIX = ".swap"
_TEMPORARY_SUFFIX = ".tmp"
Report = Callable[[str], None]
OnBatch = Callable[[BatchHeader], None]
_NEVER = 2**63


class WalkResult(NamedTuple):
    end_offset: int
    """The offset after the last whole batch."""
    start: int
    """Where the walk began."""
    broken: BrokenChain | None
    """What ended it before the end of the file."""


@dataclass
class Listing:
    """What a partition's directory holds, by base offset."""

    log_sizes: dict[int, int]
    index_sizes: dict[int, int]
    time_index_sizes: dict[int, int]
    snapshots: list[int]


def list_directory(directory: str, report: Report) -> Listing:
    """Complete interrupted operations, then list the files that are part of the log."""
    names = _names_that_count(directory)
    if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        _complete_interrupted_operations(directory, names, report)
        names = _names_that_count(directory)
    listing = Listing({}, {}, {}, [])
    by_suffix = {
        LOG_SUFFIX: listing.log_sizes,
        INDEX_SUFFIX: listing.index_sizes,
        TIME_INDEX_SUFFIX: listing.time_index_sizes,
    }
    for name in names:
        stem, suffix = name[:20], name[20:]
        if suffix == SNAPSHOT_SUFFIX:
            listing.snapshots.append(int(stem))
        elif (sizes := by_suffix.get(suffix)) is not None:
            sizes[int(stem)] = os.stat(f"{directory}/{name}").st_size
    listing.snapshots.sort()
    for base_offset in (
        listing.index_sizes.keys() | listing.time_index_sizes.keys()
    ) - listing.log_sizes.keys():
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove_if_there(segment_file(directory, base_offset, suffix))
    return listing


def _names_that_count(directory: str) -> list[str]:
    """The names that start with a base offset. Temporary files are removed."""
    names = []
    for name in os.listdir(directory):
        if name.endswith(_TEMPORARY_SUFFIX):
            remove_if_there(f"{directory}/{name}")
        elif name[:20].isdigit() and name[20:21] == ".":
            names.append(name)
    return names


def _complete_interrupted_operations(directory: str, names: list[str], report: Report) -> None:
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min((int(name[:20]) for name in cleaned), default=_NEVER)
    for name in names:
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)):
            remove_if_there(f"{directory}/{name}")
        elif name.endswith(SWAP_SUFFIX) and int(name[:20]) >= first_cleaned:
            # Its files were still being renamed: the segments that it was to replace are all there.
            remove_if_there(f"{directory}/{name}")
    if cleaned:
        report(f"{directory}: dropped an unfinished compaction")
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX) and int(name[:20]) < first_cleaned]
    with_log = {name[:20] for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    for name in swaps:
        if name[:20] not in with_log:
            # The log file is in place, or was dropped; an index that may be another's is built anew instead.
            remove_if_there(f"{directory}/{name}")
        elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _remove_replaced_segments(directory, name, names)
    swaps = [name for name in swaps if name[:20] in with_log]
    for name in swaps:
        os.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
    if swaps:
        report(f"{directory}: completed a compaction that was interrupted while its result was put in place")


def _remove_replaced_segments(directory: str, swap_name: str, names: list[str]) -> None:
    start_offset = int(swap_name[:20])
    end_offset = start_offset + 1
    fd = os.open(f"{directory}/{swap_name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _, header in iter_headers(fd, 0, os.fstat(fd).st_size):
            end_offset = header.last_offset + 1
    finally:
        os.close(fd)
    for name in names:
        if name[20:] in SEGMENT_SUFFIXES and start_offset <= int(name[:20]) < end_offset:
            remove_if_there(f"{directory}/{name}")


def open_segments(directory: str, listing: Listing, open_files: OpenFiles, now_ms: int) -> list[Segment]:
    return [
        Segment(
            directory,
            base_offset,
            open_files,
            size=size,
            index_entries=listing.index_sizes.get(base_offset, 0) // offset_index.ENTRY_BYTES,
            time_index_entries=listing.time_index_sizes.get(base_offset, 0) // time_index.ENTRY_BYTES,
            created_ms=now_ms,
        )
        for base_offset, size in sorted(listing.log_sizes.items())
    ]


def has_damaged_index(segment: Segment, listing: Listing, end_offset: int) -> bool:
    """True if an index file is missing, has half an entry, or ends with an entry outside the segment.

    Reads no more than the last entries.
    """
    if segment.size == 0:
        return False
    index_size = listing.index_sizes.get(segment.base_offset, -1)
    time_index_size = listing.time_index_sizes.get(segment.base_offset, -1)
    if (
        index_size < 0
        or time_index_size < 0
        or index_size % offset_index.ENTRY_BYTES != 0
        or time_index_size % time_index.ENTRY_BYTES != 0
    ):
        return True
    offset_limit = end_offset - segment.base_offset
    last = segment.offset_index.last_entry()
    if last is not None and (last[0] >= offset_limit or last[1] >= segment.size):
        return True
    last_time = segment.time_index.last_entry()
    if last_time is None:
        return not _lacks_timestamps(segment, last)
    return last_time[0] < 0 or last_time[1] >= offset_limit


def _lacks_timestamps(segment: Segment, last: tuple[int, int] | None) -> bool:
    """True if the time index may be empty, as its records have no timestamps. Looks at the first batch and at
    those from the last index entry on: producers that send no timestamps send none at all."""
    handle = segment.handle or segment.open_handle()
    first = islice(iter_headers(handle.fd, 0, segment.size, HEADER_SIZE), 1)
    tail = iter_headers(handle.fd, last[1] if last else 0, segment.size)
    try:
        return all(header.max_timestamp == NO_TIMESTAMP for _, header in chain(first, tail))
    except BrokenChain:
        return False


def complete_segment(segment: Segment, config: LogConfig, on_batch: OnBatch | None = None) -> WalkResult:
    """Walk from the last index entry to the end; index files that contradict the log are built anew."""
    last = segment.offset_index.last_entry()
    if last is not None:
        lacks_times = len(segment.time_index) == 0 and not _lacks_timestamps(segment, last)
        if lacks_times or not _points_at_batch(segment, *last):
            return rebuild_indexes(segment, config, on_batch)
    last_time = segment.time_index.last_entry()
    result = walk_from(segment, config, last, on_batch=on_batch)
    if last_time is not None and not _covers(segment, last_time, last, result):
        return rebuild_indexes(segment, config, on_batch)
    return result


def rebuild_indexes(segment: Segment, config: LogConfig, on_batch: OnBatch | None = None) -> WalkResult:
    segment.offset_index.truncate(0)
    segment.time_index.truncate(0)
    return walk_from(segment, config, None, on_batch=on_batch)


def recover_segment(
    segment: Segment, config: LogConfig, recovery_point: int, on_batch: OnBatch | None = None
) -> WalkResult:
    """Check CRCs from the recovery point on. What lies before it was flushed, index entries included.

    A loss of power may have left zeros or garbage after the flushed entries; these do not ascend.
    """
    entries = _ascending(segment.offset_index.entries())
    while entries and segment.base_offset + entries[-1][0] >= recovery_point:
        entries.pop()
    if entries and not _points_at_batch(segment, *entries[-1]):
        entries = []
    last = entries[-1] if entries else None
    limit = last[0] if last else -1
    times = _ascending(segment.time_index.entries())
    keep_times = sum(1 for _ in takewhile(lambda time: time[1] <= limit, times))
    segment.offset_index.truncate(len(entries))
    segment.time_index.truncate(keep_times)
    return walk_from(segment, config, last, crc_from=recovery_point, on_batch=on_batch)


def _ascending(entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first entries, as long as each exceeds the one before in both numbers, as those of an index do."""
    previous = (-1, -1)
    for place, entry in enumerate(entries):
        if entry[0] <= previous[0] or entry[1] <= previous[1]:
            return entries[:place]
        previous = entry
    return entries


def walk_from(
    segment: Segment,
    config: LogConfig,
    entry: tuple[int, int] | None,
    *,
    crc_from: int = _NEVER,
    on_batch: OnBatch | None = None,
) -> WalkResult:
    """Walk from an index entry (or the start) to the end, keeping the indexes on the way."""
    entries_before = len(segment.offset_index)
    last_time = segment.time_index.last_entry()
    segment.max_timestamp = NO_TIMESTAMP
    segment.max_timestamp_offset = segment.base_offset
    if entry is not None:
        segment.load_largest_timestamp()  # the time index knows that of the batches before
    segment.bytes_since_index = 0
    next_offset = segment.base_offset
    start = entry[1] if entry else 0
    interval_bytes = config.index_interval_bytes
    handle = segment.handle or segment.open_handle()
    broken = None
    try:
        for position, header, batch in _iterate(handle.fd, start, segment.size, crc_from < _NEVER):
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise BrokenChain(position, f"offset {header.base_offset} follows offset {next_offset - 1}")
            if batch is not None and header.base_offset >= crc_from and compute_crc(batch) != header.crc:
                raise BrokenChain(position, "a batch does not match its CRC")
            if entry is not None and position == start:
                segment.bytes_since_index = header.size  # this one is in the index
            else:
                segment.note_batch(
                    position, header.size, header.last_offset, header.max_timestamp, interval_bytes
                )
            next_offset = header.last_offset + 1
            if on_batch is not None:
                on_batch(header)
    except BrokenChain as error:
        broken = error
    segment.is_sealed = len(segment.offset_index) == entries_before and segment.max_timestamp == (
        last_time[0] if last_time else NO_TIMESTAMP
    )
    return WalkResult(next_offset, start, broken)


def _iterate(
    fd: int, start: int, end: int, with_bodies: bool
) -> Iterator[tuple[int, BatchHeader, memoryview | None]]:
    if with_bodies:
        yield from iter_batches(fd, start, end)
    else:
        for position, header in iter_headers(fd, start, end):
            yield position, header, None


def _points_at_batch(segment: Segment, relative_offset: int, position: int) -> bool:
    """True if a batch starts at `position` and ends with that offset."""
    handle = segment.handle or segment.open_handle()
    try:
        for _, header in iter_headers(handle.fd, position, segment.size, HEADER_SIZE):
            return header.last_offset == segment.base_offset + relative_offset
    except BrokenChain:
        pass
    return False


def _covers(
    segment: Segment, last_time: tuple[int, int], last: tuple[int, int] | None, result: WalkResult
) -> bool:
    """True if `last_time` can be the last time index entry of a segment that was walked to its end."""
    timestamp, relative_offset = last_time
    if segment.base_offset + relative_offset >= result.end_offset:
        return False
    if last is None:  # every batch was seen
        return timestamp == segment.max_timestamp
    return timestamp <= segment.max_timestamp


def bring_producers_up_to_date(
    directory: str, snapshots: Sequence[int], segments: list[Segment], end_offset: int, report: Report
) -> tuple[ProducerStates, int]:
    """From the newest snapshot that can be read and the batches after it; returns also its offset, or -1."""
    producers, position = ProducerStates(), -1
    for offset in reversed(snapshots):
        path = segment_file(directory, offset, SNAPSHOT_SUFFIX)
        if offset > end_offset:
            remove_if_there(path)
            continue
        try:
            producers, position = ProducerStates.read_snapshot(path), offset
            break
        except CorruptSnapshot as error:
            report(f"{error}; producers are taken from an older snapshot and the log")
            remove_if_there(path)
    if position == end_offset:
        return producers, position
    for place, segment in enumerate(segments):
        is_before = place + 1 < len(segments) and segments[place + 1].base_offset <= position
        if is_before or segment.size == 0:
            continue
        start = (segment.locate(position, may_block=True) if position > segment.base_offset else 0) or 0
        handle = segment.handle or segment.open_handle()
        for _, header in iter_headers(handle.fd, start, segment.size):
            if header.producer_id >= 0 and header.base_offset >= position:
                producers.record(header, header.last_offset, header.max_timestamp)
    return producers, position


def load_epochs(directory: str, report: Report) -> LeaderEpochs:
    try:
        return LeaderEpochs.load(directory)
    except CorruptCheckpoint as error:
        report(f"{error}; leader epochs are taken from the log")
        return LeaderEpochs(directory, is_saved=False)


def rebuild_epochs(segments: list[Segment], epochs: LeaderEpochs) -> None:
    """Take the leader epochs from the batches: the file is lost, or held nothing."""
    for segment in segments:
        if segment.size:
            handle = segment.handle or segment.open_handle()
            for _, header in iter_headers(handle.fd, 0, segment.size):
                epochs.assign(header.partition_leader_epoch, header.base_offset)
