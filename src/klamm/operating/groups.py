"""Consumer groups: how far they are behind, what their members own, and moving or deleting their offsets.

For many groups the brokers are asked together: a few requests to each, however many groups there are. What
one broker or group does not answer is said beside the others (`error`) and does not stop them.

    listings = await admin.list_groups()                      # names and states: one request per broker
    summaries = await summarize(admin, listings[:50])         # members, topics, lag of a page of them
    details = await describe(admin, "billing")                # members, and every partition with its lag
    plan = await plan_seek(admin, "billing", To(parse_place("-90m", now)))
    await seek(admin, plan)                                   # seeking.undo_text(plan) undoes it
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from klamm.client.admin.types import GroupDescription, GroupListing, GroupMember
from klamm.client.errors import BatchFailed, ClientError, GroupError
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.operating import seeking
from klamm.operating.errors import CannotDo
from klamm.operating.offsets import ends_of, last_offsets
from klamm.operating.ranges import Bound, Kind
from klamm.operating.seeking import Facts, PartitionFacts, SeekPlan, TopicChoice, is_chosen

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin

Value = TypeVar("Value")

WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})
"""The states in which a group's offsets can be moved."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list. `lag` is None if it is not known, and 0 without committed offsets.

    `topics` are those of its members and of its committed offsets. `error` says what could not be learned.
    """

    group: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: int | None
    members: int
    topics: tuple[str, ...]
    lag: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A partition of a group: what is committed, the ends of its log, and the member that owns it.

    None stands for what is not there: no committed offset, no leader that knows the ends, no member.
    """

    partition: TopicPartition
    committed: CommittedOffset | None
    first: int | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """How many offsets the group is behind."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with its members and partitions."""

    description: GroupDescription
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        """The lag over all partitions; None if no partition's lag is known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None


# ---- looking


async def summarize(admin: Admin, listings: Sequence[GroupListing]) -> list[GroupSummary]:
    """Members, topics and lag of groups that `admin.list_groups` named, in their order."""
    names = [each.group for each in listings]
    described, no_description = await _partly(admin.describe_groups(names))
    offsets, no_offsets = await _partly(admin.list_groups_offsets(names))
    wanted = {partition for committed in offsets.values() for partition in committed}
    ends = await last_offsets(admin, wanted)
    return [
        _summary(
            each,
            described.get(each.group),
            offsets.get(each.group),
            ends,
            str(no_offsets.get(each.group) or no_description.get(each.group) or ""),
        )
        for each in listings
    ]


def _summary(
    listing: GroupListing,
    group: GroupDescription | None,
    committed: Mapping[TopicPartition, CommittedOffset] | None,
    ends: Mapping[TopicPartition, int],
    error: str,
) -> GroupSummary:
    lag = None
    if committed is not None:
        known = [
            max(0, ends[partition] - offset.offset)
            for partition, offset in committed.items()
            if partition in ends
        ]
        lag = sum(known) if known or not committed else None
    topics = {partition.topic for partition in committed or ()}
    if group is not None:
        topics.update(topic for member in group.members for topic in member.topics)
    return GroupSummary(
        listing.group,
        group.state if group is not None else listing.state,
        listing.type,
        listing.protocol_type,
        "" if group is None else group.strategy,
        None if group is None else group.coordinator,
        0 if group is None else len(group.members),
        tuple(sorted(topics)),
        lag,
        error,
    )


async def describe(admin: Admin, group: str) -> GroupDetails:
    """A group's members and partitions: those with a committed offset, and those that a member owns.

    Raises GroupError if there is no such group.
    """
    return (await describe_many(admin, [group]))[group]


async def describe_many(admin: Admin, groups: Sequence[str]) -> dict[str, GroupDetails]:
    """Several groups; see `describe`. Raises the error of the first group that cannot be described."""
    described, failed = await _partly(admin.describe_groups(groups))
    for error in failed.values():
        raise error
    offsets, failed = await _partly(admin.list_groups_offsets(groups))
    for error in failed.values():
        raise error
    owners = {
        name: {partition: member for member in each.members for partition in member.partitions}
        for name, each in described.items()
    }
    wanted = {name: sorted({*offsets[name], *owners[name]}) for name in described}
    ends = await ends_of(admin, {partition for each in wanted.values() for partition in each})
    found = {}
    for name, partitions in wanted.items():
        rows = []
        for partition in partitions:
            known = ends.get(partition)
            rows.append(
                PartitionLag(
                    partition,
                    offsets[name].get(partition),
                    None if known is None else known.first,
                    None if known is None else known.last,
                    owners[name].get(partition),
                )
            )
        found[name] = GroupDetails(described[name], tuple(rows))
    return found


async def _partly(call: Awaitable[dict[str, Value]]) -> tuple[dict[str, Value], dict[str, ClientError]]:
    """What a call about several groups found, and the errors of the other groups."""
    try:
        return await call, {}
    except BatchFailed as failed:
        return failed.results, failed.errors


# ---- moving offsets


@dataclass(frozen=True, slots=True)
class To:
    """To a place: start, end, an offset, a time."""

    place: Bound


@dataclass(frozen=True, slots=True)
class By:
    """So many offsets forward, or back if negative."""

    count: int


@dataclass(frozen=True, slots=True)
class Like:
    """To where another group is."""

    group: str


@dataclass(frozen=True, slots=True)
class Saved:
    """To offsets that were saved, such as by `seeking.undo_text`. None takes an offset away."""

    offsets: Mapping[TopicPartition, CommittedOffset | None]
    of: str = "the file"


Goal: TypeAlias = To | By | Like | Saved


async def plan_seek(admin: Admin, group: str, goal: Goal, topics: Sequence[TopicChoice] = ()) -> SeekPlan:
    """What a seek would do. `topics` limits it to these topics or partitions, and adds those of them that
    have no committed offset. Without them all partitions with a committed offset are meant.

    Raises CannotDo if the group has members, if it does not exist and `topics` are not given, or if a topic
    does not exist.
    """
    await check_has_no_members(admin, group)
    committed = await admin.list_group_offsets(group)
    if isinstance(goal, To | By):
        partitions = await _partitions(admin, group, committed, topics)
        facts = await _facts(admin, partitions, committed)
        if without := sorted(set(partitions) - set(facts)):
            raise CannotDo(
                f"{without[0]} has no leader, so that its offsets are not known",
                advice="`klamm cluster status` shows what is offline",
            )
        if isinstance(goal, By):
            return seeking.by_count(group, facts, goal.count)
        return seeking.to_place(group, facts, goal.place, await _offsets_of_time(admin, facts, goal.place))
    saved: Mapping[TopicPartition, CommittedOffset | None]
    if isinstance(goal, Like):
        saved, of = await admin.list_group_offsets(goal.group), f"group {goal.group}"
    else:
        saved, of = goal.offsets, goal.of
    partitions = [each for each in saved if not topics or is_chosen(each, topics)]
    return seeking.to_saved(group, await _facts(admin, partitions, committed), saved, of)


async def seek(admin: Admin, plan: SeekPlan) -> None:
    """Carry a plan out. BatchFailed names the partitions whose offsets could not be moved."""
    changes = plan.changes
    if moved := {each.partition: each.new for each in changes if each.new is not None}:
        await admin.alter_group_offsets(plan.group, moved)
    if taken := [each.partition for each in changes if each.new is None]:
        await admin.delete_group_offsets(plan.group, taken)


async def check_has_no_members(admin: Admin, group: str) -> None:
    """Raises CannotDo if the group has members: brokers move offsets only of a group without."""
    try:
        found = await admin.describe_group(group)
    except GroupError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if found.state not in WITHOUT_MEMBERS:
        count = len(found.members)
        raise CannotDo(
            f"group {group} is in use: it has {count} member{'' if count == 1 else 's'}",
            advice="Stop its consumers first",
        )


async def _partitions(
    admin: Admin, group: str, committed: Iterable[TopicPartition], topics: Sequence[TopicChoice]
) -> list[TopicPartition]:
    """The partitions that a seek is about."""
    if not topics:
        found = sorted(committed)
        if not found:
            raise CannotDo(f"group {group} has no committed offsets", advice="Name topics to begin with")
        return found
    found = []
    for name, topic in (await admin.describe_topics({each.topic for each in topics})).items():
        there = [TopicPartition(name, each.partition) for each in topic.partitions]
        for choice in topics:
            if choice.topic == name and (
                unknown := sorted((choice.partitions or set()) - set(range(len(there))))
            ):
                raise CannotDo(f"{name} has no partition {unknown[0]}: it has 0 to {len(there) - 1}")
        found += [each for each in there if is_chosen(each, topics)]
    return found


async def _facts(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> Facts:
    ends = await ends_of(admin, partitions)
    return {partition: PartitionFacts(known, committed.get(partition)) for partition, known in ends.items()}


async def _offsets_of_time(
    admin: Admin, partitions: Iterable[TopicPartition], place: Bound
) -> dict[TopicPartition, int | None]:
    if place.kind is not Kind.TIME:
        return {}
    found = await admin.list_offsets(dict.fromkeys(partitions, place.value))
    return {each: None if one is None else one.offset for each, one in found.items()}


# ---- deleting


async def plan_delete_offsets(
    admin: Admin, group: str, topics: Sequence[TopicChoice]
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets of these topics or partitions, which `admin.delete_group_offsets` deletes.

    Raises CannotDo if there are none.
    """
    committed = await admin.list_group_offsets(group)
    found = {partition: offset for partition, offset in committed.items() if is_chosen(partition, topics)}
    if not found:
        raise CannotDo(
            f"group {group} has no committed offsets of {', '.join(each.topic for each in topics)}"
        )
    return found
