"""What one batch reads: ranges of offsets, their parts, and how much of what is there. A core.

Nothing here knows the time or a broker: who calls brings offsets and the clock. What was lost on the way
(partitions that are gone, logs that were cut) is returned as text, for the caller to raise or to log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from pyspark_klamm.offsets import Offsets, listed


class OffsetRange(NamedTuple):
    """Records of one partition from `start` to before `end`."""

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
    """Ranges to read, and what cannot be read any more."""

    ranges: list[OffsetRange]
    losses: list[str]


def plan_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Plan:
    """The ranges between two offsets of a stream.

    A partition that is new in `end` starts at its earliest offset, and so does one whose log ends before
    its start: it was made anew, and all that it holds is unread. `earliest` has both, see `unstarted`.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    gone = start.keys() - end.keys()
    if gone:
        losses.append(f"{listed(gone)} {'is' if len(gone) == 1 else 'are'} gone")
    for partition in sorted(end):
        first, last = start.get(partition), end[partition]
        if first is None:
            first = earliest.get(partition, last)
            if partition not in earliest:
                losses.append(f"the new partition {partition} is gone")
            elif first > 0:
                losses.append(f"the new partition {partition} starts at offset {first} instead of 0")
        elif first > last:
            losses.append(f"{partition} was read up to offset {first}, but ends at offset {last} now")
            first = min(earliest.get(partition, last), last)
        if first < last:
            ranges.append(OffsetRange(*partition, first, last))
    return Plan(ranges, losses)


def first_start(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], at_latest: bool
) -> Offsets:
    """Where the first batch of a stream starts that was planned before, by a process that ended before the
    batch did. Spark has kept its end, but has its start looked up again.

    Partitions that were added meanwhile are not in the batch. `at_latest`: what came meanwhile is behind its
    end, too. All else that lies behind the end was lost.
    """
    return {
        each: min(first, end[each]) if at_latest else first for each, first in start.items() if each in end
    }


def within_logs(
    offsets: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> tuple[Offsets, list[str]]:
    """Offsets that a user gave, moved to where the logs are, and what is lost by that."""
    result: Offsets = {}
    losses: list[str] = []
    for partition, offset in offsets.items():
        first, last = earliest[partition], latest[partition]
        result[partition] = min(max(offset, first), last)
        if result[partition] != offset:
            losses.append(
                f"offset {offset} of {partition} is not there: the log holds {first} to before {last}"
            )
    return result, losses


def unstarted(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions whose earliest offsets `plan_ranges` and `limited` want to know."""
    return [each for each, last in end.items() if each not in start or start[each] > last]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """`end`, cut so that `most` records lie before it, each partition getting its share.

    Every partition that has something gets at least one record, so that none starves: with more such
    partitions than records allowed there is one of each.
    """
    sizes = {each: last - start[each] for each, last in end.items() if last > start.get(each, last)}
    if sum(sizes.values()) <= most:
        return dict(end)
    shares = _shares({each: size - 1 for each, size in sizes.items()}, max(most - len(sizes), 0))
    return {**end, **{each: start[each] + 1 + share for each, share in shares.items()}}


def _shares(sizes: Mapping[TopicPartition, int], most: int) -> Offsets:
    """`most`, shared in proportion; what rounding leaves goes to those who lost most by it."""
    total = max(sum(sizes.values()), 1)
    shares = {each: size * most // total for each, size in sizes.items()}
    left = most - sum(shares.values())
    by_loss = sorted(sizes, key=lambda each: (-(sizes[each] * most % total), each))
    for partition in by_loss[:left]:
        shares[partition] += 1
    return shares


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Ranges in parts: none of more than `max_records` offsets, and at least `min_partitions` of them.

    Large ranges are cut, in parts of equal size; one offset is the smallest part.
    """
    parts = [max(1, math.ceil(each.size / max_records)) if max_records else 1 for each in ranges]
    missing = (min_partitions or 0) - sum(parts)
    if missing > 0:
        _cut_largest(ranges, parts, missing)
    return [part for each, count in zip(ranges, parts, strict=True) for part in _parts(each, count)]


def _cut_largest(ranges: Sequence[OffsetRange], parts: list[int], missing: int) -> None:
    """Add `missing` parts, in proportion to what the ranges hold."""
    total = sum(each.size for each in ranges)
    if not total:
        return
    wanted = sum(parts) + missing
    for index, each in enumerate(ranges):
        parts[index] = min(each.size, max(parts[index], each.size * wanted // total))
    while sum(parts) < wanted:
        index = max(range(len(ranges)), key=lambda one: ranges[one].size / parts[one])
        if parts[index] >= ranges[index].size:
            return  # nothing is left to cut
        parts[index] += 1


def _parts(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    cuts = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [whole._replace(start=first, end=last) for first, last in pairwise(cuts)]


class TriggerGate:
    """Holds batches back until there is enough to read, or until it has taken too long.

    The first batch of a query is never held back.
    """

    def __init__(self, min_offsets: int, max_delay_seconds: float) -> None:
        self._min_offsets = min_offsets
        self._max_delay_seconds = max_delay_seconds
        self._passed_at: float | None = None

    def lets_pass(self, available: int, now: float) -> bool:
        """Whether a batch may begin, with so many records available."""
        waited = math.inf if self._passed_at is None else now - self._passed_at
        if available < self._min_offsets and waited < self._max_delay_seconds:
            return False
        self._passed_at = now
        return True


def count_records(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between; `start` knows all partitions that count."""
    return sum(max(0, last - start[each]) for each, last in end.items() if each in start)
