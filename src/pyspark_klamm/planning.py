"""Plans what one batch reads: ranges of offsets, split into tasks and limited per trigger. A core.

Callers bring the offsets and the time. Data loss (deleted partitions, truncated logs) is returned as text,
for the caller to raise or to log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from pyspark_klamm.offsets import Offsets, listed

TASK_RECORDS = 1000
"""Ranges that are smaller together are read by one task: to start one takes longer than to read so many."""


class OffsetRange(NamedTuple):
    """Records of one partition from `start` up to, but without, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Plan:
    """Ranges to read, and descriptions of records that no longer exist."""

    ranges: list[OffsetRange]
    losses: list[str]


def plan_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Plan:
    """The ranges between two positions of a stream.

    A partition that only `end` has starts at its earliest offset. So does a partition whose log ends before
    its start: the topic was created again, and all its records are unread. `earliest` has both, see
    `unstarted`.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    gone = start.keys() - end.keys()
    if gone:
        losses.append(f"{listed(gone)} no longer exist{'s' if len(gone) == 1 else ''}")
    for partition in sorted(end):
        first, last = start.get(partition), end[partition]
        if first is None:
            first = earliest.get(partition, last)
            if partition not in earliest:
                losses.append(f"the new partition {partition} no longer exists")
            elif first > 0:
                losses.append(f"the new partition {partition} starts at offset {first} instead of 0")
        elif first > last:
            losses.append(f"{partition} was read up to offset {first}, but its log ends at offset {last} now")
            first = min(earliest.get(partition, last), last)
        if first < last:
            ranges.append(OffsetRange(*partition, first, last))
    return Plan(ranges, losses)


def first_start(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], at_latest: bool
) -> Offsets:
    """The start of a stream's first batch, if an earlier process planned the batch and did not finish it.
    Spark has the end of that batch in its checkpoint, but looks its start up again.

    Partitions that were added meanwhile are not in the batch. With `at_latest` the start may lie after the
    end, because records arrived meanwhile; otherwise a start after the end means data loss.
    """
    return {
        each: min(first, end[each]) if at_latest else first for each, first in start.items() if each in end
    }


def within_logs(
    offsets: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> tuple[Offsets, list[str]]:
    """The user's offsets, moved into the logs if they lie outside, and descriptions of what is lost."""
    result: Offsets = {}
    losses: list[str] = []
    for partition, offset in offsets.items():
        first, last = earliest[partition], latest[partition]
        result[partition] = min(max(offset, first), last)
        if result[partition] != offset:
            losses.append(
                f"offset {offset} of {partition} does not exist: the log has offsets {first} to {last - 1}"
            )
    return result, losses


def unstarted(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions whose earliest offsets `plan_ranges` and `limited` need."""
    return [each for each, last in end.items() if each not in start or start[each] > last]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """`end`, reduced so that a batch has `most` records, in proportion to what each partition has.

    Every partition with records gets at least one, so that none starves, even if there are more such
    partitions than `most`.
    """
    sizes = {each: last - start[each] for each, last in end.items() if last > start.get(each, last)}
    if sum(sizes.values()) <= most:
        return dict(end)
    shares = _shares({each: size - 1 for each, size in sizes.items()}, max(most - len(sizes), 0))
    return {**end, **{each: start[each] + 1 + share for each, share in shares.items()}}


def _shares(sizes: Mapping[TopicPartition, int], most: int) -> Offsets:
    """`most`, divided in proportion; what rounding leaves goes to those that lost most by it."""
    total = max(sum(sizes.values()), 1)
    shares = {each: size * most // total for each, size in sizes.items()}
    left = most - sum(shares.values())
    by_loss = sorted(sizes, key=lambda each: (-(sizes[each] * most % total), each))
    for partition in by_loss[:left]:
        shares[partition] += 1
    return shares


def plan_tasks(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, in their order. Small ranges share a task, unless `min_partitions` asks for a
    number of tasks."""
    parts = split_ranges(ranges, min_partitions, max_records)
    if min_partitions is not None:
        return [(part,) for part in parts]
    most = min(TASK_RECORDS, max_records or TASK_RECORDS)
    tasks: list[list[OffsetRange]] = []
    size = 0
    for part in parts:
        if not tasks or size + part.size > most:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.size
    return [tuple(task) for task in tasks]


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Split ranges into parts of at most `max_records` offsets, at least `min_partitions` of them.

    Large ranges are split into parts of equal size, down to one offset.
    """
    parts = [max(1, math.ceil(each.size / max_records)) if max_records else 1 for each in ranges]
    missing = (min_partitions or 0) - sum(parts)
    if missing > 0:
        _cut_largest(ranges, parts, missing)
    return [part for each, count in zip(ranges, parts, strict=True) for part in _parts(each, count)]


def _cut_largest(ranges: Sequence[OffsetRange], parts: list[int], missing: int) -> None:
    """Add `missing` parts, in proportion to the sizes of the ranges."""
    total = sum(each.size for each in ranges)
    if not total:
        return
    wanted = sum(parts) + missing
    for index, each in enumerate(ranges):
        parts[index] = min(each.size, max(parts[index], each.size * wanted // total))
    while sum(parts) < wanted:
        index = max(range(len(ranges)), key=lambda one: ranges[one].size / parts[one])
        if parts[index] >= ranges[index].size:
            return  # nothing is left to split
        parts[index] += 1


def _parts(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    cuts = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [whole._replace(start=first, end=last) for first, last in pairwise(cuts)]


class TriggerGate:
    """Delays batches until there are enough records, or until the longest delay is over.

    The first batch of a query is never delayed.
    """

    def __init__(self, min_offsets: int, max_delay_seconds: float) -> None:
        self._min_offsets = min_offsets
        self._max_delay_seconds = max_delay_seconds
        self._passed_at: float | None = None

    def lets_pass(self, available: int, now: float) -> bool:
        """True if a batch with `available` records may begin at the time `now`."""
        waited = math.inf if self._passed_at is None else now - self._passed_at
        if available < self._min_offsets and waited < self._max_delay_seconds:
            return False
        self._passed_at = now
        return True


def count_records(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between `start` and `end`, in the partitions that `start` has."""
    return sum(max(0, last - start[each]) for each, last in end.items() if each in start)
