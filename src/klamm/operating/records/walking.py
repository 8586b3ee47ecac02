"""Walks through a topic record by record, newest or oldest first: a page of a list, or a search.

A walk without a filter merges partitions by time: a record comes when the next one of every partition is
known. A walk with a filter looks at a round of records of every partition, and gives what it found in them:
otherwise the first match would wait until every partition had one.

A walk steps through windows of offsets, and a window may hold fewer records than offsets: compaction leaves
gaps, and transactions leave markers. `positions` are exact at any time, so that another walk can go on there.
Positions are the next offset to read of each partition; walking newest first, the one before which to read.

Steps block; the console runs them in threads (`stepping.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic

from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.records.reading import Reading
from klamm.operating.records.rows import MakeRow, Row
from klamm.operating.records.spans import Span

STEP_RECORDS = 2_000
"""How many records one step looks at: some ten milliseconds with a filter of fields."""

ROUND_RECORDS = 20_000
"""How many records of all partitions one round of a search looks at, newest first."""

LEAST_WINDOW = 4
GROWTH = 4
"""By how much a window grows if there was nothing in it, so that large gaps are soon passed."""

PATIENCE_S = 6.0
"""After this time without an answer, a walk goes on without the partitions that do not answer."""

FETCH_OPTIONS: Mapping[str, str | int] = {
    "start": "earliest",
    "fetch_max_bytes": 8_000_000,
    "prefetch_max_bytes": 16_000_000,
}
"""Of consumers that walk: they keep at most so many bytes ahead, unless one record is larger."""

BACKWARD_FETCH_OPTIONS: Mapping[str, str | int] = {**FETCH_OPTIONS, "max_partition_fetch_bytes": 256_000}
"""What is fetched beyond a window is dropped, so less is fetched at once."""

ONE_RECORD_FETCH_OPTIONS: Mapping[str, str | int] = {**FETCH_OPTIONS, "max_partition_fetch_bytes": 32_000}


class Order(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True)
class Step:
    """What one step of a walk brought."""

    rows: tuple[Row, ...]
    positions: Mapping[int, int]
    """Where to go on after `rows`."""
    passed: int
    """How many offsets of all spans lie behind the positions."""
    total: int
    """How many offsets all spans have."""
    scanned: int
    """How many records this walk has looked at."""
    is_end: bool = False
    """True if the walk has passed all spans."""
    unanswered: tuple[int, ...] = ()
    """Partitions that did not answer; the walk goes on without them."""


class Walk:
    """A walk through the spans of one topic's partitions, which all have an end."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        spans: Mapping[int, Span],
        make_row: MakeRow,
        *,
        order: Order = Order.NEWEST,
        positions: Mapping[int, int] | None = None,
        passes: Callable[[Record], bool] | None = None,
        limit: int = 50,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._spans = spans
        self._make_row = make_row
        self._is_back = order is Order.NEWEST
        self._passes = passes
        self._limit = limit
        start = {each: _stop(span) if self._is_back else span.first for each, span in spans.items()}
        for each, position in (positions or {}).items():
            if each in start:
                start[each] = min(max(position, spans[each].first), _stop(spans[each]))
        self._read_to = start
        """The records between here and the start of the walk were read."""
        self._waiting: dict[int, deque[Row]] = {each: deque() for each in spans}
        """Rows that were read and not given yet, the next one first."""
        self._windows = dict.fromkeys(spans, self._first_window())
        self._unanswered: set[int] = set()
        self._stream: Reading | None = None
        self._scanned = 0

    def run(self) -> Generator[Step, None, None]:
        """Steps until there are `limit` rows, or the spans are passed. The last step says which."""
        given = 0
        while True:
            for _ in self._fill(self._unread()):
                yield self._step((), is_end=False)
            rows = tuple(self._take(self._limit - given))
            given += len(rows)
            is_end = not self._left() and not any(self._waiting.values())
            if rows or is_end or given >= self._limit:
                yield self._step(rows, is_end=is_end)
            if is_end or given >= self._limit:
                return

    # ---- reading

    def _unread(self) -> list[int]:
        """The partitions to read next: of a search all that have offsets left, else those without a row."""
        left = self._left()
        return left if self._passes is not None else [each for each in left if not self._waiting[each]]

    def _left(self) -> list[int]:
        return [
            each
            for each, span in self._spans.items()
            if each not in self._unanswered
            and (self._read_to[each] > span.first if self._is_back else self._read_to[each] < _stop(span))
        ]

    def _fill(self, partitions: list[int]) -> Generator[None, None, None]:
        """Read a window of each partition; yields between its pieces."""
        if not partitions:
            return
        if self._passes is not None and not self._is_back:
            yield from self._fill_from_stream(partitions)
            return
        windows = {each: self._window(each) for each in partitions}
        reading = Reading(self._consumer, self._named(windows))
        found: dict[int, deque[Row]] = {each: deque(maxlen=self._limit) for each in partitions}
        asked = monotonic()
        while not reading.is_done:
            if self._look_at(reading, found):
                asked = monotonic()
            elif monotonic() - asked > PATIENCE_S:
                self._give_up(
                    each for each in partitions if not _is_read(reading, self._topic, each, windows)
                )
                break
            yield
        for each in partitions:
            if each not in self._unanswered:
                self._keep(each, windows[each], found[each])

    def _fill_from_stream(self, partitions: list[int]) -> Generator[None, None, None]:
        """Read on without windows: what was fetched ahead is not dropped."""
        if self._stream is None:
            spans = {each: Span(self._read_to[each], _stop(self._spans[each])) for each in partitions}
            self._stream = Reading(self._consumer, self._named(spans))
        found: dict[int, deque[Row]] = {each: deque() for each in partitions}
        asked = monotonic()
        while not self._look_at(self._stream, found) and not self._stream.is_done:
            if monotonic() - asked > PATIENCE_S:
                self._give_up(partitions)
                return
            yield
        for each in partitions:
            self._waiting[each].extend(found[each])
            self._read_to[each] = self._stream.positions[TopicPartition(self._topic, each)]

    def _look_at(self, reading: Reading, found: Mapping[int, deque[Row]]) -> int:
        """One step of a reading. Returns how many records came."""
        records = reading.step(STEP_RECORDS)
        passes, make_row = self._passes, self._make_row
        for record in records:
            if passes is None or passes(record):
                kept = found.get(record.partition)
                if kept is not None and (self._is_back or kept.maxlen is None or len(kept) < kept.maxlen):
                    kept.append(make_row(record))
        self._scanned += len(records)
        return len(records)

    def _keep(self, partition: int, window: Span, rows: deque[Row]) -> None:
        is_full = len(rows) == self._limit
        if self._is_back:
            # Of a full window those furthest back may have been dropped: they are read again.
            self._read_to[partition] = rows[0].offset if is_full else window.first
            self._waiting[partition].extend(reversed(rows))
        else:
            self._read_to[partition] = rows[-1].offset + 1 if is_full else _stop(window)
            self._waiting[partition].extend(rows)
        if not rows and self._passes is None:
            self._windows[partition] *= GROWTH

    def _window(self, partition: int) -> Span:
        span, at, size = self._spans[partition], self._read_to[partition], self._windows[partition]
        return (
            Span(max(span.first, at - size), at) if self._is_back else Span(at, min(_stop(span), at + size))
        )

    def _first_window(self) -> int:
        count = max(1, len(self._spans))
        if self._passes is not None:
            return max(self._limit, ROUND_RECORDS // count)
        return max(LEAST_WINDOW, min(self._limit, 2 * self._limit // count))

    def _named(self, spans: Mapping[int, Span]) -> dict[TopicPartition, Span]:
        return {TopicPartition(self._topic, each): span for each, span in spans.items()}

    def _give_up(self, partitions: Iterable[int]) -> None:
        self._unanswered.update(partitions)

    # ---- giving

    def _take(self, most: int) -> Generator[Row, None, None]:
        """Rows in order of their time, but each partition's in the order of their offsets."""
        for _ in range(most):
            if self._passes is None and self._unread():
                return
            heads = [waiting[0] for waiting in self._waiting.values() if waiting]
            if not heads:
                return
            first = max(heads, key=_place) if self._is_back else min(heads, key=_place)
            yield self._waiting[first.partition].popleft()

    def _step(self, rows: tuple[Row, ...], *, is_end: bool) -> Step:
        positions = {
            each: (waiting[0].offset + 1 if self._is_back else waiting[0].offset)
            if waiting
            else self._read_to[each]
            for each, waiting in self._waiting.items()
        }
        passed = sum(
            _stop(span) - positions[each] if self._is_back else positions[each] - span.first
            for each, span in self._spans.items()
        )
        total = sum(_stop(span) - span.first for span in self._spans.values())
        return Step(rows, positions, passed, total, self._scanned, is_end, tuple(sorted(self._unanswered)))


def _place(row: Row) -> tuple[int, int, int]:
    return row.timestamp, row.partition, row.offset


def _stop(span: Span) -> int:
    assert span.stop is not None, "a walk has an end"
    return span.stop


def _is_read(reading: Reading, topic: str, partition: int, windows: Mapping[int, Span]) -> bool:
    return reading.positions[TopicPartition(topic, partition)] >= _stop(windows[partition])


def walk(
    consumer: Callable[..., Consumer],
    topic: str,
    spans: Mapping[int, Span],
    make_row: MakeRow,
    *,
    order: Order = Order.NEWEST,
    positions: Mapping[int, int] | None = None,
    passes: Callable[[Record], bool] | None = None,
    limit: int = 50,
    read_committed: bool = False,
) -> Generator[Step, None, None]:
    """A walk with a consumer of its own, which `consumer` makes from options."""
    options = BACKWARD_FETCH_OPTIONS if order is Order.NEWEST else FETCH_OPTIONS
    isolation = "read_committed" if read_committed else "read_uncommitted"
    with consumer(**options, isolation_level=isolation) as made:
        yield from Walk(
            made, topic, spans, make_row, order=order, positions=positions, passes=passes, limit=limit
        ).run()


def read_record(consumer: Callable[..., Consumer], partition: TopicPartition, offset: int) -> Record | None:
    """The record at an offset; None if a gap is there. The offset must lie before the partition's end. Raises
    CannotDo if no broker answers."""
    with consumer(**ONE_RECORD_FETCH_OPTIONS) as made:
        reading = Reading(made, {partition: Span(offset, offset + 1)})
        asked = monotonic()
        while not reading.is_done:
            if records := reading.step(STEP_RECORDS):
                return records[0]
            if monotonic() - asked > PATIENCE_S:
                raise CannotDo(
                    f"{partition} did not answer for {PATIENCE_S:.0f} s",
                    advice="See whether its leader is up",
                )
    return None
