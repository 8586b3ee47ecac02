"""Where a seek moves the offsets of a group: what is asked for becomes a plan, and a plan can be undone.

A core: the caller looks up offsets (`groups.py`) and carries the plan out. A plan names the old and the new
offset of each partition, so that it can be shown before it is done. `undo_text` of a plan is JSON that
`parse_undo` reads back: `to_saved` makes the plan that returns to it.

A new offset always lies within the partition's log: offsets that are deleted already become the first one,
those that are not written yet become the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from klamm.client.results import CommittedOffset, TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.ranges import Bound, Ends, offset_of


class PartitionFacts(NamedTuple):
    """What a partition and a group have: the log's ends, and the group's offset, None without one."""

    ends: Ends
    committed: CommittedOffset | None = None


Facts = Mapping[TopicPartition, PartitionFacts]


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's old and new offset. None means that the group has no offset there.

    `read_again` and `passed_over` count offsets; compacted ones count as well. `note` says why the new offset
    is not the one that was asked for.
    """

    partition: TopicPartition
    old: CommittedOffset | None
    new: CommittedOffset | None
    ends: Ends
    note: str = ""

    @property
    def changes(self) -> bool:
        """False if the group is there already."""
        return (None if self.old is None else self.old.offset) != (
            None if self.new is None else self.new.offset
        )

    @property
    def read_again(self) -> int:
        """How many offsets the group has read and will read once more."""
        if self.old is None or self.new is None:
            return 0
        return max(0, min(self.old.offset, self.ends.last) - max(self.new.offset, self.ends.first))

    @property
    def passed_over(self) -> int:
        """How many offsets the group has not read and will not read."""
        if self.old is None or self.new is None:
            return 0
        return max(0, min(self.new.offset, self.ends.last) - max(self.old.offset, self.ends.first))


@dataclass(frozen=True, slots=True)
class SeekPlan:
    """The moves of a group's offsets, by topic and partition."""

    group: str
    moves: tuple[Move, ...]

    @property
    def changes(self) -> tuple[Move, ...]:
        """The moves that change something."""
        return tuple(each for each in self.moves if each.changes)

    @property
    def read_again(self) -> int:
        return sum(each.read_again for each in self.moves)

    @property
    def passed_over(self) -> int:
        return sum(each.passed_over for each in self.moves)


# ---- what can be asked for


def to_place(
    group: str, facts: Facts, place: Bound, offsets_of_times: Mapping[TopicPartition, int | None]
) -> SeekPlan:
    """To a place of `ranges.parse_place`. `offsets_of_times` has the offset of a time in each partition."""
    wanted = {}
    for partition, each in facts.items():
        times = {place.value: offsets_of_times.get(partition)}
        wanted[partition] = CommittedOffset(offset_of(place, each.ends, times))
    return _plan(group, facts, wanted)


def by_count(group: str, facts: Facts, count: int) -> SeekPlan:
    """So many offsets forward, or back if `count` is negative. Partitions without an offset stay without."""
    wanted = {
        partition: CommittedOffset(each.committed.offset + count)
        for partition, each in facts.items()
        if each.committed is not None
    }
    if not wanted:
        raise CannotDo(
            f"group {group} has no committed offsets to move by a number", advice="Give a place to move to"
        )
    return _plan(group, facts, wanted)


def to_saved(
    group: str, facts: Facts, saved: Mapping[TopicPartition, CommittedOffset | None], of: str
) -> SeekPlan:
    """To the offsets that were saved, or that another group has. None takes the offset of a partition away.

    `of` names where they are from. Partitions that are not there any more are left out.
    """
    wanted = {partition: offset for partition, offset in saved.items() if partition in facts}
    if not wanted:
        raise CannotDo(f"{of} has no offset of a partition that is there")
    return _plan(group, facts, wanted)


def _plan(group: str, facts: Facts, wanted: Mapping[TopicPartition, CommittedOffset | None]) -> SeekPlan:
    moves = []
    for partition in sorted(wanted):
        ends, old = facts[partition]
        new, note = wanted[partition], ""
        if new is not None and new.offset < ends.first:
            new, note = CommittedOffset(ends.first, new.metadata), f"the log begins at {ends.first:,}"
        elif new is not None and new.offset > ends.last:
            new, note = CommittedOffset(ends.last, new.metadata), f"the log ends at {ends.last:,}"
        moves.append(Move(partition, old, new, ends, note))
    return SeekPlan(group, tuple(moves))


# ---- undoing


def undo_text(plan: SeekPlan) -> str:
    """JSON with the old offsets of a plan, to be kept in a file."""
    offsets = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "offset": None if each.old is None else each.old.offset,
            "metadata": "" if each.old is None else each.old.metadata,
        }
        for each in plan.moves
    ]
    return json.dumps({"group": plan.group, "offsets": offsets}, ensure_ascii=False, indent=2) + "\n"


def parse_undo(text: str, where: str) -> dict[TopicPartition, CommittedOffset | None]:
    """The offsets of `undo_text`. `where` names the file. Raises CannotDo for anything else."""
    problem = CannotDo(
        f"{where} has no offsets of a group",
        advice='Expected {"group": …, "offsets": [{"topic": …, "partition": …, "offset": …}]}',
    )
    try:
        listed = json.loads(text)["offsets"]
        found = {
            TopicPartition(str(each["topic"]), int(each["partition"])): None
            if each["offset"] is None
            else CommittedOffset(int(each["offset"]), str(each.get("metadata", "")))
            for each in listed
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise problem from None
    if not found:
        raise problem
    return found


# ---- which partitions


class TopicChoice(NamedTuple):
    """A topic, and those of its partitions that are meant; None means all."""

    topic: str
    partitions: frozenset[int] | None = None

    def has(self, partition: TopicPartition) -> bool:
        return partition.topic == self.topic and (
            self.partitions is None or partition.partition in self.partitions
        )


def parse_choice(text: str) -> TopicChoice:
    """`orders`, or `orders:0,1`. Raises CannotDo."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return TopicChoice(topic)
    try:
        found = frozenset(int(each) for each in numbers.split(","))
    except ValueError:
        raise CannotDo(f"{text} names no partitions: expected orders or orders:0,1") from None
    return TopicChoice(topic, found)


def is_chosen(partition: TopicPartition, choices: Iterable[TopicChoice]) -> bool:
    """True if one of the choices has the partition."""
    return any(each.has(partition) for each in choices)
