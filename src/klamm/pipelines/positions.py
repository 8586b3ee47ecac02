"""Positions of pipelines in their topics: offsets, as Spark's checkpoints and our files write them. A core.

A position is the offset of the next record, for each partition of each topic: {"orders": {"0": 17}}. A table
that is read as a stream has its place there too, as the topic `table:<name>` with TABLE_KEYS instead of
partitions (`tables/appended.py` says what they are).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeGuard

Position: TypeAlias = dict[str, dict[str, int]]

EARLIEST_OFFSET = -2
"""Stands for the oldest record, as in the options of Spark's Kafka connector."""

TABLE_PREFIX = "table:"
"""The names of tables in positions begin with this. No topic has a colon in its name."""

ROWS = "rows"
TABLE_KEYS = ("table", "snapshot", "files", "version", ROWS)
"""The numbers of a place in a table, all of which only grow."""

_NOTHING_YET = "-"  # what Spark writes for a source without an offset


def parse_offset_log(text: str) -> list[Position]:
    """Parse a file of a checkpoint's `offsets` folder: the end of the batch, for each source.

    The first line is a version, the second has settings of the query, then follows one line per source. Lines
    of sources that are not topics are left out.
    """
    found = []
    for line in text.splitlines()[2:]:
        if line.strip() in ("", _NOTHING_YET):
            continue
        value = json.loads(line)
        if is_position(value):
            found.append(value)
    return found


def merged(positions: Iterable[Position], choose: Callable[[int, int], int]) -> Position:
    """The positions of several sources as one. `choose` (min, max) decides where they share a partition."""
    result: Position = {}
    for position in positions:
        for topic, partitions in position.items():
            into = result.setdefault(topic, {})
            for partition, offset in partitions.items():
                into[partition] = choose(into[partition], offset) if partition in into else offset
    return result


def reaches(end: Position, point: Position) -> bool:
    """True if `end` is after `point` in any partition that `point` names."""
    return any(
        end.get(topic, {}).get(partition, 0) > offset
        for topic, partitions in point.items()
        for partition, offset in partitions.items()
    )


def is_gone(start: Position, end: Position, oldest: Position, newest: Position) -> bool:
    """True if some record between `start` and `end` is no longer in the topics."""
    for topic, partitions in end.items():
        for partition, last in partitions.items():
            first = max(0, start.get(topic, {}).get(partition, 0))
            first_there, last_there = _at(oldest, topic, partition), _at(newest, topic, partition)
            if first < last and not first_there <= first < last <= last_there:
                return True
    return False


def _at(position: Position, topic: str, partition: str) -> int:
    """The offset of a partition, or -1 if the partition is not in the position."""
    return position.get(topic, {}).get(partition, -1)


def records_between(start: Position, end: Position) -> int:
    """How many offsets lie between two positions, or rows of tables. Partitions that only `end` has count
    from offset 0."""
    return sum(
        max(0, offset - max(0, start.get(topic, {}).get(partition, 0)))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
        if partition == ROWS or not is_table(topic)
    )


def table_key(table: str) -> str:
    """The name of a table in positions."""
    return f"{TABLE_PREFIX}{table}"


def is_table(topic: str) -> bool:
    """True if a name in a position is that of a table."""
    return topic.startswith(TABLE_PREFIX)


def of_topics(position: Position) -> Position:
    """The position without tables."""
    return {topic: partitions for topic, partitions in position.items() if not is_table(topic)}


def completed(position: Position, partitions: Mapping[str, Iterable[int]]) -> Position:
    """The position with all `partitions`: those that it does not name begin at their oldest record."""
    return {
        topic: {str(number): position.get(topic, {}).get(str(number), EARLIEST_OFFSET) for number in numbers}
        for topic, numbers in partitions.items()
    }


def is_position(value: object) -> TypeGuard[Position]:
    """True if a JSON value is a position, and not the offset of another kind of source."""
    return isinstance(value, dict) and all(
        isinstance(partitions, dict) and all(isinstance(offset, int) for offset in partitions.values())
        for partitions in value.values()
    )
