"""Ranges of records, and which rows of a table come from records in them. A core.

A row tells its record by `_topic`, `_partition` and `_offset`. The statistics of a file tell of most files
whether none or all of their rows lie in a range, without reading the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.pipelines.positions import Position
from klamm.pipelines.tables.statistics import MOST_CHARACTERS

TOPIC, PARTITION, OFFSET = "_topic", "_partition", "_offset"
COORDINATES = (TOPIC, PARTITION, OFFSET)

Share: TypeAlias = Literal["none", "some", "all"]
"""How many rows of a file lie in a range."""

MOST_PARTITIONS = 10_000
"""A file whose statistics allow for more partitions is read."""


class Range(NamedTuple):
    """Records of one partition from `start` up to, but without, `end`."""

    start: int
    end: int


Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

Ranges: TypeAlias = dict[str, dict[int, Range]]
"""By topic and partition. No range is empty."""


def between(start: Position, end: Position) -> Ranges:
    """The ranges between two positions, for the partitions that both name."""
    found: Ranges = {}
    for topic, partitions in start.items():
        for number, first in partitions.items():
            last = end.get(topic, {}).get(number)
            if last is not None and first < last:
                found.setdefault(topic, {})[int(number)] = Range(first, last)
    return found


def each_range(ranges: Ranges) -> Iterator[tuple[str, int, Range]]:
    for topic, partitions in ranges.items():
        for partition, its_range in partitions.items():
            yield topic, partition, its_range


def count_records(ranges: Ranges) -> int:
    return sum(its_range.end - its_range.start for _, _, its_range in each_range(ranges))


def includes(ranges: Ranges, topic: str, partition: int | None, offset: int | None) -> bool:
    """True if a record lies in the ranges."""
    if partition is None or offset is None:
        return False
    found = ranges.get(topic, {}).get(partition)
    return found is not None and found.start <= offset < found.end


def starts(ranges: Ranges) -> Position:
    return _position((topic, partition, each.start) for topic, partition, each in each_range(ranges))


def ends(ranges: Ranges) -> Position:
    return _position((topic, partition, each.end) for topic, partition, each in each_range(ranges))


def to_json(ranges: Ranges) -> dict[str, dict[str, list[int]]]:
    return {
        topic: {str(number): [each.start, each.end] for number, each in partitions.items()}
        for topic, partitions in ranges.items()
    }


def from_json(value: Mapping[str, Mapping[str, Iterable[int]]]) -> Ranges:
    """The inverse of `to_json`."""
    return {
        topic: {int(number): Range(*each) for number, each in partitions.items()}
        for topic, partitions in value.items()
    }


def in_words(ranges: Ranges, most: int = 3) -> str:
    """The first few ranges, for people: "offsets 5 to 8 of orders-0, offsets …"."""
    words = [
        f"offsets {each.start} to {each.end - 1} of {topic}-{partition}"
        for topic, partition, each in sorted(each_range(ranges))
    ]
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more partitions" if more > 0 else "")


class Bounds(NamedTuple):
    """What is known of the records of a file's rows without reading the file. None is unknown."""

    rows: int | None = None
    topic: str | None = None
    """The topic of all rows."""
    partitions: tuple[int, int] | None = None
    """The least and the greatest."""
    offsets: tuple[int, int] | None = None
    without_record: int | None = None
    """How many rows do not tell their record."""

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> Bounds:
        """What the log says of a file. `action` is a row of deltalake's `get_add_actions(flatten=True)`."""
        topic = _pair(action, TOPIC)
        nulls: list[int | None] = [
            0 if action.get(f"partition.{name}") is not None else action.get(f"null_count.{name}")
            for name in COORDINATES
        ]
        counted = [each for each in nulls if each is not None]
        # A long text is cut in statistics.
        is_one = topic is not None and topic[0] == topic[1] and len(topic[0]) < MOST_CHARACTERS
        return cls(
            action.get("num_records"),
            topic[0] if topic is not None and is_one else None,
            _pair(action, PARTITION),
            _pair(action, OFFSET),
            max(counted) if len(counted) == len(nulls) else None,
        )


def share(bounds: Bounds, ranges: Ranges) -> Share:
    """How many rows of a file lie in the ranges, as far as its bounds tell. "some" if the file must be
    read."""
    if bounds.rows == 0:
        return "none"
    if bounds.partitions is None or bounds.offsets is None:
        return "some"
    first, last = bounds.partitions
    least, greatest = bounds.offsets
    near = [
        each
        for topic, partition, each in each_range(ranges)
        if bounds.topic in (None, topic) and first <= partition <= last
    ]
    if all(greatest < each.start or each.end <= least for each in near):
        return "none"
    if bounds.topic is None or bounds.without_record != 0 or last - first >= MOST_PARTITIONS:
        return "some"
    its_ranges = ranges.get(bounds.topic, {})
    is_all = all(
        number in its_ranges and its_ranges[number].start <= least and greatest < its_ranges[number].end
        for number in range(first, last + 1)
    )
    return "all" if is_all else "some"


def rows_in(coordinates: pa.Table, ranges: Ranges) -> Mask:
    """For each row whether its record lies in the ranges. Rows that do not tell their record do not."""
    found = np.zeros(coordinates.num_rows, dtype=np.bool_)
    partitions, offsets = (
        coordinates[name].cast(pa.int64()).fill_null(-1).to_numpy() for name in (PARTITION, OFFSET)
    )
    topics = coordinates[TOPIC].cast(pa.string())
    for topic, its_ranges in ranges.items():
        size = max(its_ranges) + 2  # the last place is for partitions without a range
        first, last = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for number, each in its_ranges.items():
            first[number], last[number] = each
        index = np.where((partitions >= 0) & (partitions < size), partitions, size - 1)
        is_in = (offsets >= first[index]) & (offsets < last[index])
        found |= is_in & pc.equal(topics, topic).fill_null(False).to_numpy()
    return found


def _pair(action: Mapping[str, Any], name: str) -> Any:
    """The least and the greatest value of a column, which may be a partition column; None if unknown."""
    if (value := action.get(f"partition.{name}")) is not None:
        return value, value
    least, greatest = action.get(f"min.{name}"), action.get(f"max.{name}")
    return None if least is None or greatest is None else (least, greatest)


def _position(offsets: Iterable[tuple[str, int, int]]) -> Position:
    found: Position = {}
    for topic, partition, offset in offsets:
        found.setdefault(topic, {})[str(partition)] = offset
    return found
