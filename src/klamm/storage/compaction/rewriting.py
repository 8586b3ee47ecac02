"""One compaction of one log, on its files: reads the segments, writes their successors beside them.

`clean` is a generator. It writes `<base offset>.log.cleaned` with its two indexes, brings them to the
disk, yields the new segment and the ones it replaces, and goes on when it is asked for the next. Putting
them in place is the broker's part. Several small segments become one, up to the log's segment size.

The old files are only read. They belong to sealed segments, so they do not change; they may vanish when
retention deletes them, and then the compaction fails with an OSError and nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from klamm.records.batch import parse_header
from klamm.storage.compaction.batch_filter import BatchFilter, Retention
from klamm.storage.compaction.offset_map import OffsetMap, build_offset_map
from klamm.storage.compaction.record_scan import BatchOnDisk
from klamm.storage.files import remove_if_there
from klamm.storage.segments.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.scanning import BATCH_SCAN_BYTES, iter_batches
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    Segment,
    segment_file,
)
from klamm.storage.segments.time_index import ENTRY_BYTES as TIME_INDEX_ENTRY_BYTES

_ENTRY_BYTES = max(INDEX_ENTRY_BYTES, TIME_INDEX_ENTRY_BYTES)


class _Span(NamedTuple):
    """A segment to be compacted."""

    base_offset: int
    size: int
    end_offset: int


class CleanPlan(NamedTuple):
    """All that one compaction needs to know; travels as JSON."""

    directory: str
    segments: list[tuple[int, int]]
    """(base offset, size) of the sealed segments from the log's start up to the bound, in order."""
    first_dirty_offset: int
    bound_offset: int
    """The first offset that may not be compacted: the base offset of the segment after the last one."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_limit_bytes: int
    last_producer_offsets: list[tuple[int, int]]

    def spans(self) -> list[_Span]:
        next_bases = [*(base_offset for base_offset, _ in self.segments[1:]), self.bound_offset]
        return [_Span(*segment, end) for segment, end in zip(self.segments, next_bases, strict=True)]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CleanPlan:
        pairs = ("segments", "last_producer_offsets")
        return cls(**{**fields, **{name: [(a, b) for a, b in fields[name]] for name in pairs}})


class CleanedSegment(NamedTuple):
    """A new segment, whole and on disk under its `.cleaned` names."""

    base_offset: int
    replaced: list[int]
    """Base offsets of the segments whose place it takes; the first is its own."""
    size: int
    index_entries: int
    time_index_entries: int


class CleanSummary(NamedTuple):
    end_offset: int
    """The new first dirty offset."""
    records_read: int
    records_kept: int
    records_without_key: int
    bytes_read: int
    bytes_written: int


class Stopped(Exception):
    """The broker asked the process to stop, or the broker has ended."""


def clean(
    plan: CleanPlan, should_stop: Callable[[], bool] = lambda: False
) -> Generator[CleanedSegment, None, CleanSummary]:
    offset_map = build_offset_map(
        _dirty_batches(plan, should_stop), plan.first_dirty_offset, plan.map_limit_bytes
    )
    filter_ = _filter_for(plan, offset_map)
    open_files = OpenFiles()
    bytes_read = bytes_written = 0
    output: _Output | None = None
    for span in plan.spans():
        if span.base_offset >= offset_map.end_offset:
            break
        if output is not None and not output.has_room_for(span):
            bytes_written += output.segment.size
            yield from output.finish()
            output = None
        if output is None:
            output = _Output(plan, span.base_offset, open_files)
        output.add(span, filter_, should_stop)
        bytes_read += span.size
    if output is not None:
        bytes_written += output.segment.size
        yield from output.finish()
    return CleanSummary(
        offset_map.end_offset,
        filter_.records_read,
        filter_.records_kept,
        filter_.records_without_key,
        bytes_read,
        bytes_written,
    )


def _filter_for(plan: CleanPlan, offset_map: OffsetMap) -> BatchFilter:
    retention = Retention(
        plan.now_ms, plan.delete_retention_ms, plan.bound_offset, frozenset(plan.last_producer_offsets)
    )
    return BatchFilter(offset_map, retention)


def _dirty_batches(plan: CleanPlan, should_stop: Callable[[], bool]) -> Iterator[BatchOnDisk]:
    for span in plan.spans():
        if span.end_offset > plan.first_dirty_offset:
            for batch in _batches(plan.directory, span, should_stop):
                if batch[0].last_offset >= plan.first_dirty_offset:
                    yield batch


def _batches(directory: str, span: _Span, should_stop: Callable[[], bool]) -> Iterator[BatchOnDisk]:
    fd = os.open(segment_file(directory, span.base_offset, LOG_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
    ask_at = 0
    try:
        for position, header, data in iter_batches(fd, 0, span.size):
            if position >= ask_at:
                ask_at = position + BATCH_SCAN_BYTES
                if should_stop():
                    raise Stopped
            yield header, data
    finally:
        os.close(fd)


class _Output:
    """A new segment while it is written."""

    def __init__(self, plan: CleanPlan, base_offset: int, open_files: OpenFiles) -> None:
        self._plan = plan
        self.segment = Segment.create(
            plan.directory, base_offset, open_files, created_ms=plan.now_ms, suffix=CLEANED_SUFFIX
        )
        self._replaced: list[int] = []
        self._last_modified_ns = 0
        self._has_changed = False

    def has_room_for(self, span: _Span) -> bool:
        """True if all records of one more old segment would fit."""
        plan = self._plan
        entries = max(len(self.segment.offset_index), len(self.segment.time_index))
        entries += span.size // max(1, plan.index_interval_bytes) + 2
        return (
            self.segment.size + span.size <= plan.segment_bytes
            and entries * _ENTRY_BYTES <= plan.segment_index_bytes
            and span.end_offset - self.segment.base_offset <= MAX_RELATIVE_OFFSET
        )

    def add(self, span: _Span, filter_: BatchFilter, should_stop: Callable[[], bool]) -> None:
        directory, interval_bytes = self._plan.directory, self._plan.index_interval_bytes
        append = self.segment.append
        for header, data in _batches(directory, span, should_stop):
            kept = filter_.apply(header, data)
            if kept is data:
                append(data, header.last_offset, header.max_timestamp, interval_bytes)
                continue
            self._has_changed = True
            if kept is not None:
                max_timestamp = parse_header(kept).max_timestamp
                append(memoryview(kept), header.last_offset, max_timestamp, interval_bytes)
        old_path = segment_file(directory, span.base_offset, LOG_SUFFIX)
        self._last_modified_ns = max(self._last_modified_ns, os.stat(old_path).st_mtime_ns)
        self._replaced.append(span.base_offset)

    def finish(self) -> Iterator[CleanedSegment]:
        """Sync the new segment. If it is the same as its only predecessor, it is dropped instead."""
        segment = self.segment
        if not self._has_changed and len(self._replaced) == 1:
            remove_cleaned(segment.directory, segment.base_offset)
            return
        segment.seal()
        os.utime(segment.path(LOG_SUFFIX + CLEANED_SUFFIX), ns=(self._last_modified_ns,) * 2)
        segment.sync()
        yield CleanedSegment(
            segment.base_offset,
            self._replaced,
            segment.size,
            len(segment.offset_index),
            len(segment.time_index),
        )


def remove_cleaned(directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        remove_if_there(segment_file(directory, base_offset, suffix + CLEANED_SUFFIX))
