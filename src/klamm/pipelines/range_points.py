"""Turns two points, as users write them, into the ranges of records that a replay reads.

A range ends at the latest where the pipeline has come, as its table says: the pipeline itself reads what
follows. It begins at the earliest at the oldest record that is still in the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.pipelines.positions import Position, merged
from klamm.pipelines.project import Project
from klamm.pipelines.replay import ReplayRefused
from klamm.pipelines.starts import Point, parse_point, resolve
from klamm.pipelines.state import Attempt
from klamm.pipelines.tables import ranges as ranges_
from klamm.pipelines.tables.range_replacing import count_inside
from klamm.pipelines.tables.ranges import Range, Ranges
from klamm.pipelines.tables.table import Table

START = "start"
"""As an end: where the pipeline began to read."""

MOST_NAMED = 3
"""So many partitions are named in a message."""


class AskedRanges:
    """Turns two points into ranges, and collects what there is to say about them."""

    def __init__(
        self, project: Project, topics: Sequence[str], present: Attempt, table: Table, owner: str
    ) -> None:
        self.warnings: list[str] = []
        self._project = project
        self._present = present
        self._table = table
        self._topics = topics
        self._oldest = resolve(project, self._topics, "earliest")
        self._newest = resolve(project, self._topics, "latest")
        partitions = {topic: list(numbers) for topic, numbers in self._newest.items()}
        self._read = table.offsets(owner, partitions)

    def ranges(self, from_: Point, to: Point) -> Ranges:
        first = self._at(from_)
        word = to.strip().lower() if isinstance(to, str) else ""
        last = self._began() if word == START else self._at(to)
        start, end = _common(first, last)
        self._check_order(start, end)
        self._check_topics(start)
        bounded = self._up_to_the_pipeline(start, end, is_told=word != "latest")
        self._say_what_is_gone(start)
        begin = merged([start, _only(self._oldest, start)], max)
        found = ranges_.between(begin, bounded)
        if not found:
            is_ahead = bool(ranges_.between(begin, end))
            raise ReplayRefused(
                "the pipeline has not come to that range yet: there is nothing to replay"
                if is_ahead
                else "there is no record in that range: there is nothing to replay",
                advice="Give other points; the pipeline itself reads newer records",
            )
        return found

    def _at(self, point: Point) -> Position:
        """The offsets of a point. Of offsets by partition, only those partitions are read that are named."""
        if isinstance(point, str):
            point = parse_point(point)
        if isinstance(point, int):
            ends = self._newest.items()
            return {
                topic: {each: min(point, end) for each, end in numbers.items()} for topic, numbers in ends
            }
        found = resolve(self._project, self._topics, point)
        if not isinstance(point, Mapping):
            return found
        named: Position = {}
        for topic, offsets in point.items():
            for number, offset in offsets.items():
                if number not in self._newest[topic]:
                    raise ReplayRefused(
                        f"{topic} has no partition {number}",
                        advice=f"It has {len(self._newest[topic])} partitions",
                    )
                words = {-2: self._oldest, -1: self._newest}
                at = words[offset][topic][number] if offset in words else offset
                named.setdefault(topic, {})[number] = at
        return named

    def _began(self) -> Position:
        """The least offsets at which an epoch of the pipeline began."""
        starts = [position for epoch in self._present.epochs for position in epoch.start.values()]
        if not starts:
            raise ReplayRefused(
                "the project's state does not know where the pipeline began",
                advice="Give offsets: klamm table history has those of each batch",
            )
        known = merged(starts, min)
        return {
            topic: {number: max(0, known.get(topic, {}).get(number, 0)) for number in numbers}
            for topic, numbers in self._newest.items()
        }

    def _check_order(self, start: Position, end: Position) -> None:
        for topic, numbers in start.items():
            for number, first in numbers.items():
                if end[topic][number] < first:
                    raise ReplayRefused(
                        f"the end lies before the beginning: {topic}-{number} would be read from offset "
                        f"{first} to {end[topic][number]}",
                        advice="Give a later --to, or an earlier --from",
                    )

    def _check_topics(self, start: Position) -> None:
        """Raise if a topic ends before what the pipeline has read of it: its records are others now."""
        for topic, numbers in start.items():
            for number in numbers:
                read, newest = self._read.get(topic, {}).get(number, 0), self._newest[topic][number]
                if read > newest:
                    raise ReplayRefused(
                        f"{topic}-{number} ends at offset {newest}, but the pipeline has read it up to "
                        f"{read}: the topic was made anew, and the records of these rows are gone",
                        advice="Keep the table as it is, and let the pipeline write to a new table",
                    )

    def _up_to_the_pipeline(self, start: Position, end: Position, *, is_told: bool) -> Position:
        """The end, or where the pipeline has come: it reads the records after that itself."""
        bounded: Position = {}
        cut: list[str] = []
        for topic, numbers in end.items():
            for number, last in numbers.items():
                read = self._read.get(topic, {}).get(number, 0)
                bounded.setdefault(topic, {})[number] = min(last, read)
                if start[topic][number] < last and read < last:
                    cut.append(f"{topic}-{number} up to offset {read}")
        if cut and is_told:
            self.warnings.append(
                f"the pipeline has read {named(cut)}: the replay ends there, and the pipeline reads what "
                "follows"
            )
        return bounded

    def _say_what_is_gone(self, start: Position) -> None:
        gone: Ranges = {}
        for topic, numbers in start.items():
            for number, first in numbers.items():
                oldest = self._oldest[topic][number]
                if first <= oldest and oldest > 0:
                    begin = first if first < oldest else 0
                    gone.setdefault(topic, {})[int(number)] = Range(begin, oldest)
        if gone and (rows := count_inside(self._table, gone).rows):
            self.warnings.append(
                f"rows of older records, which are no longer in the topics, stay as they are: {rows:,}"
            )


def _common(first: Position, last: Position) -> tuple[Position, Position]:
    """Both positions, with those partitions only that both have."""
    return _only(first, last), _only(last, first)


def _only(position: Position, other: Position) -> Position:
    return {
        topic: {number: offset for number, offset in numbers.items() if number in other.get(topic, {})}
        for topic, numbers in position.items()
        if topic in other
    }


def named(texts: Sequence[str]) -> str:
    """The first few, for messages."""
    more = len(texts) - MOST_NAMED
    return ", ".join(texts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
