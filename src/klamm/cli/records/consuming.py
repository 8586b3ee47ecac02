"""Reads records for `klamm topic consume`: ranges of partitions, or what a group's member is handed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from klamm.cli.errors import CommandError
from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.operating.ranges import Kind, Range
from klamm.operating.records.filters import parse_filter
from klamm.operating.records.matching import Matcher
from klamm.operating.records.reading import POLL_S, Reading
from klamm.operating.records.spans import Span

RECORDS_AT_ONCE = 20_000


def read_spans(consumer: Consumer, spans: Mapping[TopicPartition, Span]) -> Iterator[Sequence[Record]]:
    """The records of the spans, as they come. Ends when all spans with an end are read."""
    reading = Reading(consumer, spans)
    while not reading.is_done:
        if records := reading.step(RECORDS_AT_ONCE):
            yield records


def read_as_member(consumer: Consumer) -> Iterator[Sequence[Record]]:
    """What a group is handed. Records count as handled when the next ones are asked for."""
    while True:
        records = consumer.poll(timeout=POLL_S, max_records=RECORDS_AT_ONCE)
        if records:
            yield records


def passing(filter_text: str | None) -> Callable[[Iterator[Sequence[Record]]], Iterator[Sequence[Record]]]:
    """A function that leaves the records that pass a filter. Raises CannotDo for a text that is none."""
    term = parse_filter(filter_text or "")
    if term is None:
        return lambda batches: batches
    passes = Matcher(term)
    return lambda batches: ([each for each in batch if passes(each)] for batch in batches)


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
