"""Where pipelines are in their topics: offsets as Spark's checkpoints and our own files write them. A core.

A position is the offset of the next record, for each partition of each topic: {"orders": {"0": 17}}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeGuard

Position: TypeAlias = dict[str, dict[str, int]]

EARLIEST_OFFSET = -2
"""Stands for the oldest record there is, as in the options of Spark's connectors."""

_NOTHING_YET = "-"  # what Spark writes for a source that has not given an offset


def parse_offset_log(text: str) -> list[Position]:
    """One entry of the `offsets` folder of a checkpoint: for each source the end of the batch.

    The first line is a version, the second has settings of the query, then comes one line per source. Lines
    that are not positions, of sources that are no topics, are left out.
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
    """One position for several sources; of a topic that more than one of them reads, `choose` (min, max)."""
    result: Position = {}
    for position in positions:
        for topic, partitions in position.items():
            into = result.setdefault(topic, {})
            for partition, offset in partitions.items():
                into[partition] = choose(into[partition], offset) if partition in into else offset
    return result


def reaches(end: Position, point: Position) -> bool:
    """Whether something before `end` is at or after `point`, in any partition that `point` names."""
    return any(
        end.get(topic, {}).get(partition, 0) > offset
        for topic, partitions in point.items()
        for partition, offset in partitions.items()
    )


def is_gone(start: Position, end: Position, oldest: Position, newest: Position) -> bool:
    """Whether something that was read from `start` to `end` is not among what topics have by now."""
    for topic, partitions in end.items():
        for partition, last in partitions.items():
            first = max(0, start.get(topic, {}).get(partition, 0))
            first_there, last_there = _at(oldest, topic, partition), _at(newest, topic, partition)
            if first < last and not first_there <= first < last <= last_there:
                return True
    return False


def _at(position: Position, topic: str, partition: str) -> int:
    """An offset; of a partition that is not there none is right."""
    return position.get(topic, {}).get(partition, -1)


def records_between(start: Position, end: Position) -> int:
    """How many offsets lie between two positions. Partitions that are new in `end` count from their start."""
    return sum(
        max(0, offset - max(0, start.get(topic, {}).get(partition, 0)))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def completed(position: Position, partitions: Mapping[str, Iterable[int]]) -> Position:
    """The position with all partitions there are: those that it does not name begin with their oldest."""
    return {
        topic: {str(number): position.get(topic, {}).get(str(number), EARLIEST_OFFSET) for number in numbers}
        for topic, numbers in partitions.items()
    }


def is_position(value: object) -> TypeGuard[Position]:
    """Whether something that was read as JSON is a position, and not what another source keeps."""
    return isinstance(value, dict) and all(
        isinstance(partitions, dict) and all(isinstance(offset, int) for offset in partitions.values())
        for partitions in value.values()
    )
