"""What an assignor is given: the members of a group with what they told of themselves, and the topics.

All assignors take the same two arguments and return the partitions of every member, so that whoever leads a
group needs to know nothing about strategies:

    assign(members, topics) -> {member id: [TopicPartition, ...]}

An assignor is a pure function: the same members and topics give the same answer, in whatever order they came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from klamm.model.ids import TopicPartition

Assignment: TypeAlias = dict[str, list[TopicPartition]]
"""The partitions of every member by its id; a member that gets nothing is in it with an empty list."""

Topics: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
"""By topic, for each partition in order the racks that its replicas stand in (none where they do not say)."""


class GroupMember(NamedTuple):
    """A member as the leader of a group sees it.

    `owned` is what it held when it joined and `generation` since when; a member without a generation that is
    known (an older client, or a new member) has None. `rack` is where it stands.
    """

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int | None = None
    rack: str | None = None


class Assignor(Protocol):
    def __call__(self, members: Collection[GroupMember], topics: Topics) -> Assignment: ...


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    """The order that Java and librdkafka have: static members by instance id, then the others by member id.

    An instance id outlives its process where a member id does not, so that a static member that comes back
    stands where it stood.
    """
    return sorted(members, key=_place)


def _place(member: GroupMember) -> tuple[bool, bytes]:
    is_dynamic = member.instance_id is None
    return is_dynamic, java_order(member.member_id if member.instance_id is None else member.instance_id)


def java_order(text: str) -> bytes:
    """A key that sorts texts as Java does, by UTF-16 units; Python would sort by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def no_partitions(members: Iterable[GroupMember]) -> Assignment:
    return {member.member_id: [] for member in members}


def racks_matter(members: Iterable[GroupMember], racks: Collection[frozenset[str]]) -> bool:
    """Whether looking at racks can bring anything: members and replicas share some, and not all are equal."""
    of_members = {member.rack for member in members if member.rack is not None}
    of_partitions = frozenset().union(*racks)
    return not of_members.isdisjoint(of_partitions) and any(each != of_partitions for each in racks)
