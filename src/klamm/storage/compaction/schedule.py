"""Which log is to be compacted next, and how far. Decisions only; `examine` may block on segment files.

A log is clean up to its first dirty offset, where the last compaction ended. From there to the bound lies
what the next one takes in. The bound is the active segment, or the first segment that is younger than
`min.compaction.lag.ms` or not yet stable on all replicas. A log is due when enough of it is dirty
(`min.cleanable.dirty.ratio`) or when something has been dirty for longer than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from klamm.records.batch import NO_TIMESTAMP
from klamm.storage.compaction.rewriting import CleanPlan
from klamm.storage.log import Log
from klamm.storage.segments.segment import Segment


class Cleanable(NamedTuple):
    """What a compaction of `log` would take in now."""

    log: Log
    segments: Sequence[Segment]
    """All sealed segments below the bound."""
    first_dirty_offset: int
    bound_offset: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total_bytes = sum(segment.size for segment in self.segments)
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio >= self.log.config.min_cleanable_dirty_ratio


def examine(log: Log, first_dirty_offset: int, stable_offset: int, now_ms: int) -> Cleanable:
    """`first_dirty_offset` is where the last compaction ended; a log that was cut since is dirty again."""
    segments = log.segments
    if not log.log_start_offset <= first_dirty_offset <= segments[-1].base_offset:
        first_dirty_offset = log.log_start_offset
    bound_offset = segments[-1].base_offset
    dirty = []
    for segment, following in pairwise(segments):
        if following.base_offset <= first_dirty_offset:
            continue
        if following.base_offset > stable_offset or _is_too_young(log, segment, now_ms):
            bound_offset = segment.base_offset
            break
        dirty.append(segment)
    return Cleanable(
        log,
        [segment for segment in segments if segment.base_offset < bound_offset],
        min(first_dirty_offset, bound_offset),
        bound_offset,
        sum(segment.size for segment in dirty),
        any(_is_overdue(log, segment, now_ms) for segment in dirty),
    )


def _is_too_young(log: Log, segment: Segment, now_ms: int) -> bool:
    lag_ms = log.config.min_compaction_lag_ms
    return lag_ms > 0 and segment.largest_timestamp() > now_ms - lag_ms


def _is_overdue(log: Log, segment: Segment, now_ms: int) -> bool:
    if segment.size and segment.first_timestamp == NO_TIMESTAMP:
        segment.load_first_timestamp()
    return 0 <= segment.first_timestamp < now_ms - log.config.max_compaction_lag_ms


def choose(cleanables: Iterable[Cleanable]) -> Cleanable | None:
    """The dirtiest of those that are due."""
    return max((c for c in cleanables if c.is_due), key=lambda c: c.dirty_ratio, default=None)


def plan_for(cleanable: Cleanable, now_ms: int, map_limit_bytes: int) -> CleanPlan:
    log = cleanable.log
    config = log.config
    start_offset, bound_offset = cleanable.segments[0].base_offset, cleanable.bound_offset
    producers = log.producers.copy().entries
    return CleanPlan(
        directory=str(log.directory),
        segments=[(segment.base_offset, segment.size) for segment in cleanable.segments],
        first_dirty_offset=cleanable.first_dirty_offset,
        bound_offset=bound_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_limit_bytes=map_limit_bytes,
        last_producer_offsets=[
            (producer_id, entry.batches[-1].last_offset)
            for producer_id, entry in producers.items()
            if entry.batches and start_offset <= entry.batches[-1].last_offset < bound_offset
        ],
    )
