"""Reads records for `klamm topic consume`: ranges of partitions, or what a group's member is handed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from klamm.cli.errors import CommandError
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.operating.ranges import Bound, Ends, Kind, Range, offset_of

POLL_S = 0.5
"""How long one poll waits: Ctrl-C is heard, and the ends are looked at, as often."""

RECORDS_AT_ONCE = 20_000


class Span:
    """What is read of one partition: from `first` on, up to `stop` without it; without `stop` for ever."""

    def __init__(self, first: int, stop: int | None) -> None:
        self.first = first
        self.stop = stop

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.first >= self.stop


def chosen_partitions(
    admin: Admin, topics: Sequence[str], partitions: Sequence[int] | None
) -> list[TopicPartition]:
    """The partitions of the topics, or those of them that are asked for. Raises CommandError."""
    found: list[TopicPartition] = []
    for name, topic in admin.describe_topics(topics).items():
        there = [each.partition for each in topic.partitions]
        if unknown := sorted(set(partitions or ()) - set(there)):
            raise CommandError(f"{name} has no partition {unknown[0]}: it has 0 to {there[-1]}")
        found += [TopicPartition(name, each) for each in (partitions or there)]
    return found


def spans(admin: Admin, partitions: Sequence[TopicPartition], range_: Range) -> dict[TopicPartition, Span]:
    """The offsets that a range means in each partition, at this moment."""
    ends = ends_of(admin, partitions)
    times = {time: admin.list_offsets(dict.fromkeys(partitions, time)) for time in range_.times()}

    def offset(bound: Bound, partition: TopicPartition) -> int:
        found = {time: answer[partition] for time, answer in times.items()}
        known = {time: None if each is None else each.offset for time, each in found.items()}
        return offset_of(bound, ends[partition], known)

    return {
        each: Span(offset(range_.first, each), None if range_.last is None else offset(range_.last, each))
        for each in partitions
    }


def ends_of(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
    firsts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    lasts = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    found: dict[TopicPartition, Ends] = {}
    for each in partitions:
        first, last = firsts[each], lasts[each]
        assert first is not None and last is not None, "only times may have no offset"
        found[each] = Ends(first.offset, last.offset)
    return found


def read_spans(consumer: Consumer, spans: Mapping[TopicPartition, Span]) -> Iterator[Sequence[Record]]:
    """The records of the spans, as they come. Ends when all spans with an end are read."""
    open_ = {each: span for each, span in spans.items() if not span.is_empty}
    if not open_:
        return
    consumer.assign(list(open_))
    for partition, span in open_.items():
        consumer.seek(partition, span.first)
    bounded = {each: span.stop for each, span in open_.items() if span.stop is not None}
    while True:
        records: Sequence[Record] = consumer.poll(timeout=POLL_S, max_records=RECORDS_AT_ONCE)
        if records:
            yield _before(records, bounded) if bounded else records
        for partition, stop in list(bounded.items()):
            if consumer.position(partition) >= stop:
                del bounded[partition], open_[partition]
                if not open_:
                    return
                consumer.pause(partition)


def read_as_member(consumer: Consumer) -> Iterator[Sequence[Record]]:
    """What a group is handed. Records count as handled when the next ones are asked for."""
    while True:
        records = consumer.poll(timeout=POLL_S, max_records=RECORDS_AT_ONCE)
        if records:
            yield records


def first_of(batches: Iterator[Sequence[Record]], count: int | None) -> Iterator[Sequence[Record]]:
    """At most `count` records."""
    if count is None:
        yield from batches
        return
    left = count
    while left > 0:
        batch = next(batches, None)
        if batch is None:
            return
        taken = list(islice(batch, left))
        left -= len(taken)
        yield taken


def start_of_group(range_: Range | None, now: datetime) -> str | datetime | None:
    """Where a group begins that has committed nothing. Raises CommandError for what only partitions have."""
    if range_ is None:
        return None
    kind, value = range_.first
    if range_.last is None and kind in (Kind.START, Kind.END):
        return "earliest" if kind is Kind.START else "latest"
    if range_.last is None and kind is Kind.TIME:
        return datetime.fromtimestamp(value / 1000, now.tzinfo)
    raise CommandError(
        "a group begins at start, end or a time, if it has committed nothing",
        advice="Move a group with: klamm group seek",
    )


def _before(records: Sequence[Record], stops: Mapping[TopicPartition, int]) -> list[Record]:
    """Without the records at and after the end of their span."""
    by_name = {(each.topic, each.partition): stop for each, stop in stops.items()}
    return [
        record
        for record in records
        if (stop := by_name.get((record[0], record[1]))) is None or record[2] < stop
    ]
