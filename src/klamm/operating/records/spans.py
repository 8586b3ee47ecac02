"""The offsets that a range means in each partition of topics, and where the nearest records are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from klamm.client.admin.admin import Admin
from klamm.client.results import TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.offsets import ends_of
from klamm.operating.ranges import Bound, Ends, Range, offset_of


class Span(NamedTuple):
    """What is read of one partition: from `first` on, up to `stop` without it; without `stop` for ever."""

    first: int
    stop: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.first >= self.stop


async def chosen_partitions(
    admin: Admin, topics: Sequence[str], partitions: Sequence[int] | None = None
) -> list[TopicPartition]:
    """The partitions of the topics, or those of them that are asked for. Raises CannotDo."""
    found: list[TopicPartition] = []
    for name, topic in (await admin.describe_topics(topics)).items():
        there = [each.partition for each in topic.partitions]
        if unknown := sorted(set(partitions or ()) - set(there)):
            raise CannotDo(f"{name} has no partition {unknown[0]}: it has 0 to {there[-1]}")
        found += [TopicPartition(name, each) for each in (partitions or there)]
    return found


async def spans_of(
    admin: Admin, partitions: Sequence[TopicPartition], range_: Range, *, read_committed: bool = False
) -> dict[TopicPartition, Span]:
    """The offsets that a range means in each partition, at this moment. Partitions that have no leader are
    left out."""
    ends = await ends_of(admin, partitions, read_committed=read_committed)
    times = {time: await admin.list_offsets(dict.fromkeys(ends, time)) for time in range_.times()}

    def offset(bound: Bound, partition: TopicPartition) -> int:
        found = {time: answer[partition] for time, answer in times.items()}
        known = {time: None if each is None else each.offset for time, each in found.items()}
        return offset_of(bound, ends[partition], known)

    return {
        each: Span(offset(range_.first, each), None if range_.last is None else offset(range_.last, each))
        for each in ends
    }


def within(spans: Mapping[TopicPartition, Span], ends: Mapping[TopicPartition, Ends]) -> dict[int, Span]:
    """The spans of one topic's partitions, by number, without the offsets that are not there yet."""
    return {
        each.partition: Span(
            min(span.first, ends[each].last),
            ends[each].last if span.stop is None else min(span.stop, ends[each].last),
        )
        for each, span in spans.items()
        if each in ends
    }


class Nearest(NamedTuple):
    """Where records are, seen from a range that has none: how many offsets lie before and after it, and the
    newest record of the topic."""

    before: int
    after: int
    newest: tuple[int, int, int] | None
    """Its partition, offset and time in milliseconds."""


async def nearest(admin: Admin, topic: str, spans: Mapping[int, Span]) -> Nearest:
    partitions = [TopicPartition(topic, each) for each in spans]
    if not partitions:
        return Nearest(0, 0, None)
    ends = await ends_of(admin, partitions)
    before = after = 0
    for each in ends:
        span, (first, last) = spans[each.partition], ends[each]
        before += max(0, min(span.first, last) - first)
        after += max(0, last - max(first, last if span.stop is None else span.stop))
    newest = None
    if before + after:
        found = await admin.list_offsets(dict.fromkeys(ends, "max_timestamp"))
        there = [
            (one.timestamp, each.partition, one.offset) for each, one in found.items() if one is not None
        ]
        if there:
            time, partition, offset = max(there)
            newest = (partition, offset, time)
    return Nearest(before, after, newest)
