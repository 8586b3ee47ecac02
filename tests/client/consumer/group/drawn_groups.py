"""Groups to share partitions among, as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from klamm.client.consumer.group.assignors import Assignment, GroupMember, Topics
from klamm.model.ids import TopicPartition

TOPICS = ("alpha", "beta", "gamma", "delta")
RACKS = ("r1", "r2", "r3")

racks_of_a_partition = st.frozensets(st.sampled_from(RACKS), max_size=2)


@st.composite
def topics_drawn(draw: st.DrawFn, with_racks: bool = False) -> dict[str, list[frozenset[str]]]:
    racks = racks_of_a_partition if with_racks else st.just(frozenset[str]())
    names = draw(st.lists(st.sampled_from(TOPICS), unique=True, min_size=1))
    return {name: draw(st.lists(racks, max_size=9)) for name in names}


@st.composite
def members_drawn(draw: st.DrawFn, *, alike: bool = False, with_racks: bool = False) -> list[GroupMember]:
    """New members. `alike` subscribe to the same topics; some may name a topic that does not exist."""
    count = draw(st.integers(1, 8))
    subscriptions = st.frozensets(st.sampled_from((*TOPICS, "not there")), min_size=1)
    together = draw(subscriptions)
    return [
        GroupMember(
            f"member-{draw(st.integers(0, 99)):02d}-{number}",
            together if alike else draw(subscriptions),
            f"instance-{number}" if draw(st.booleans()) else None,
            rack=draw(st.sampled_from((None, *RACKS))) if with_racks else None,
        )
        for number in range(count)
    ]


def holding(members: Collection[GroupMember], assignment: Assignment, generation: int) -> list[GroupMember]:
    """The same members when they join again with what they were given."""
    return [
        member._replace(owned=tuple(assignment.get(member.member_id, ())), generation=generation)
        for member in members
    ]


def assert_each_has_one_owner(
    members: Collection[GroupMember], topics: Topics, assignment: Assignment
) -> None:
    assert assignment.keys() == {member.member_id for member in members}
    subscribed = frozenset().union(*(member.topics for member in members))
    expected = [
        TopicPartition(topic, number)
        for topic in sorted(subscribed & topics.keys())
        for number in range(len(topics[topic]))
    ]
    assert sorted(one for partitions in assignment.values() for one in partitions) == expected
    for member in members:
        assert {one.topic for one in assignment[member.member_id]} <= member.topics
