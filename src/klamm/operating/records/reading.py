"""Reads spans of partitions with one consumer, step by step.

Steps block, and decode in the thread that calls them: the console runs them in threads (`stepping.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.operating.records.spans import Span

POLL_S = 0.5
"""How long one step waits at most: Ctrl-C is heard, and the ends are looked at, as often."""


class Reading:
    """The records of spans, as they come."""

    def __init__(self, consumer: Consumer, spans: Mapping[TopicPartition, Span]) -> None:
        self._consumer = consumer
        self.positions = {each: span.first for each, span in spans.items()}
        """Where the next step goes on in spans with an end: after gaps that compaction left, and after the
        markers of transactions."""
        self._open = {each: span for each, span in spans.items() if not span.is_empty}
        self._stops = {each: span.stop for each, span in self._open.items() if span.stop is not None}
        consumer.assign(list(self._open))
        for partition, span in self._open.items():
            consumer.seek(partition, span.first)
        if self._open:
            consumer.resume(list(self._open))

    @property
    def is_done(self) -> bool:
        """True if all spans have an end, and are read."""
        return not self._open

    def step(self, max_records: int, timeout_s: float = POLL_S) -> Sequence[Record]:
        """The next records; none if none came in this time, or the spans are read."""
        if self.is_done:
            return []
        records: Sequence[Record] = self._consumer.poll(timeout=timeout_s, max_records=max_records)
        stops = dict(self._stops)
        for partition, stop in stops.items():
            position = self._consumer.position(partition)
            if position >= stop:
                del self._stops[partition], self._open[partition]
                self._consumer.pause(partition)
            self.positions[partition] = min(position, stop)
        return _before(records, stops) if stops else records


def _before(records: Sequence[Record], stops: Mapping[TopicPartition, int]) -> list[Record]:
    """Without the records at and after the end of their span."""
    by_name = {(each.topic, each.partition): stop for each, stop in stops.items()}
    return [
        record
        for record in records
        if (stop := by_name.get((record[0], record[1]))) is None or record[2] < stop
    ]
