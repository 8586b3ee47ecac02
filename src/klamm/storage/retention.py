"""Which of the oldest segments retention deletes. Pure decisions; the log carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from klamm.records.batch import NO_TIMESTAMP
from klamm.storage.log_config import LogConfig
from klamm.storage.segments.segment import Segment


def count_expired(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    deletable_before: int,
) -> int:
    """How many segments from the oldest on may go.

    A segment goes when all of it is older than retention.ms, when the rest alone has retention.bytes, or
    when it lies below the log start offset; never above `deletable_before`, and never an empty last one.
    The count may include the active segment: then the log rolls first.
    """
    next_offsets = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    allowed = 0
    for segment, next_offset in zip(segments, next_offsets, strict=True):
        is_empty_last = segment is segments[-1] and segment.size == 0
        if next_offset > deletable_before or is_empty_last:
            break
        allowed += 1
    candidates = segments[:allowed]
    count = _leading(candidates, lambda place: next_offsets[place] <= log_start_offset)
    if segments and count == len(segments):
        count -= 1  # the log start offset alone does not end the active segment
    if not config.cleanup_delete:
        return count
    if config.retention_ms >= 0:
        count = max(count, _leading(candidates, lambda place: _is_old(candidates[place], config, now_ms)))
    if config.retention_bytes >= 0:
        count = max(
            count, _count_over_size(candidates, sum(s.size for s in segments) - config.retention_bytes)
        )
    return count


def _leading(candidates: Sequence[Segment], is_expired: Callable[[int], bool]) -> int:
    count = 0
    while count < len(candidates) and is_expired(count):
        count += 1
    return count


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """By its newest record; one whose records have no timestamps by when we first saw it."""
    newest_ms = segment.largest_timestamp()
    if newest_ms == NO_TIMESTAMP:
        newest_ms = segment.created_ms
    return now_ms - newest_ms > config.retention_ms


def _count_over_size(candidates: Sequence[Segment], excess_bytes: int) -> int:
    count = 0
    for segment in candidates:
        if excess_bytes < segment.size or excess_bytes <= 0:
            break
        excess_bytes -= segment.size
        count += 1
    return count
