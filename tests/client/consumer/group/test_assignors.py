from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.consumer.group.assignors import ASSIGNORS, Assignment, GroupMember, Topics
from klamm.client.consumer.group.assignors.stateless_assignors import assign_range, assign_round_robin
from klamm.client.consumer.group.assignors.sticky_assignor import assign_cooperative_sticky, assign_sticky
from klamm.model.ids import TopicPartition
from tests.client.consumer.group.drawn_groups import (
    assert_each_has_one_owner,
    holding,
    members_drawn,
    topics_drawn,
)
from tests.client.consumer.group.scene import partitions, topics_of

FAST_ENOUGH_SECONDS = 1.0  # it takes a hundredth of it; the machine may be busy


def members_of(**topics: str) -> list[GroupMember]:
    return [GroupMember(name, frozenset(text.split())) for name, text in topics.items()]


def names(assignment: Assignment) -> dict[str, str]:
    return {member: " ".join(map(str, partitions)) for member, partitions in assignment.items()}


# ---- of all strategies


@pytest.mark.parametrize("strategy", ASSIGNORS)
@given(st.data())
def test_every_partition_has_one_owner(strategy: str, data: st.DataObject) -> None:
    members = data.draw(members_drawn(with_racks=True))
    topics = data.draw(topics_drawn(with_racks=True))
    assert_each_has_one_owner(members, topics, ASSIGNORS[strategy](members, topics))


@pytest.mark.parametrize("strategy", ASSIGNORS)
@given(st.data())
def test_the_order_in_which_members_are_given_does_not_matter(strategy: str, data: st.DataObject) -> None:
    members = data.draw(members_drawn(with_racks=True))
    topics = data.draw(topics_drawn(with_racks=True))
    shuffled = data.draw(st.permutations(members))
    assert ASSIGNORS[strategy](members, topics) == ASSIGNORS[strategy](shuffled, topics)


# ---- range and round robin, as Kafka's documentation has them


def test_range_gives_each_a_run_of_every_topic() -> None:
    members = members_of(c0="t0 t1", c1="t0 t1")
    assert names(assign_range(members, topics_of(t0=3, t1=3))) == {
        "c0": "t0-0 t0-1 t1-0 t1-1",
        "c1": "t0-2 t1-2",
    }


def test_round_robin_deals_over_all_topics() -> None:
    members = members_of(c0="t0 t1", c1="t0 t1")
    assert names(assign_round_robin(members, topics_of(t0=3, t1=3))) == {
        "c0": "t0-0 t0-2 t1-1",
        "c1": "t0-1 t1-0 t1-2",
    }


def test_round_robin_passes_over_those_who_did_not_subscribe() -> None:
    members = members_of(c0="t0", c1="t0 t1", c2="t0 t1 t2")
    assert names(assign_round_robin(members, topics_of(t0=1, t1=2, t2=3))) == {
        "c0": "t0-0",
        "c1": "t1-0",
        "c2": "t1-1 t2-0 t2-1 t2-2",
    }


def test_static_members_stand_first_in_the_order_of_their_instances() -> None:
    members = [
        GroupMember("a", frozenset({"t"})),
        GroupMember("x", frozenset({"t"}), "second"),
        GroupMember("y", frozenset({"t"}), "first"),
    ]
    assert names(assign_range(members, topics_of(t=3))) == {"y": "t-0", "x": "t-1", "a": "t-2"}


def test_range_prefers_replicas_in_the_members_rack() -> None:
    members = [GroupMember("a", frozenset({"t"}), rack="r2"), GroupMember("b", frozenset({"t"}), rack="r1")]
    racks = [frozenset({"r1"}), frozenset({"r2"})]
    assert names(assign_range(members, {"t": racks})) == {"a": "t-1", "b": "t-0"}


# ---- sticky


def sizes(assignment: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assignment.values())


@given(members_drawn(alike=True), topics_drawn())
def test_equal_subscriptions_get_equal_shares(members: list[GroupMember], topics: Topics) -> None:
    found = sizes(assign_sticky(members, topics))
    assert found[-1] - found[0] <= 1


@given(members_drawn(), topics_drawn())
def test_nobody_could_take_from_one_with_two_more(members: list[GroupMember], topics: Topics) -> None:
    """What Kafka promises of its sticky assignor; chains of hand-overs are the next test."""
    assignment = assign_sticky(members, topics)
    by_id = {member.member_id: member for member in members}
    for rich, its in assignment.items():
        for poor, poors in assignment.items():
            if len(its) >= len(poors) + 2:
                movable = [one for one in its if one.topic in by_id[poor].topics]
                assert not movable, f"{poor} could take {movable} from {rich}"


def test_shares_are_evened_out_along_chains() -> None:
    """No hand-over alone helps: `poor` may not have what `rich` has. But the third can pass something on."""
    members = members_of(rich="left", middle="left right", poor="right")
    held = {"rich": "left-0 left-1 left-2", "middle": "right-0 right-1", "poor": "right-2"}
    holders = [
        member._replace(owned=tuple(sorted(partitions(held[member.member_id]))), generation=1)
        for member in members
    ]
    assert sizes(assign_sticky(holders, topics_of(left=3, right=3))) == [2, 2, 2]


@given(members_drawn(with_racks=True), topics_drawn(with_racks=True), st.integers(0, 100))
def test_nothing_moves_when_nothing_changed(
    members: list[GroupMember], topics: Topics, generation: int
) -> None:
    first = assign_sticky(members, topics)
    again = holding(members, first, generation)
    assert assign_sticky(again, topics) == first
    assert assign_cooperative_sticky(again, topics) == first


@given(st.data())
def test_as_little_moves_as_evenness_allows(data: st.DataObject) -> None:
    """With equal subscriptions the least number of moves is known: what is above the shares has to go."""
    topics = data.draw(topics_drawn())
    before = data.draw(members_drawn(alike=True))
    first = assign_sticky(before, topics)
    staying = data.draw(st.lists(st.sampled_from(before), unique=True))
    newcomers = [
        GroupMember(f"new-{number}", before[0].topics)
        for number in range(data.draw(st.integers(0 if staying else 1, 4)))
    ]
    members = holding(staying, first, 1) + newcomers
    second = assign_sticky(members, topics)
    assert_each_has_one_owner(members, topics, second)
    found = sizes(second)
    assert found[-1] - found[0] <= 1

    share, larger = divmod(sum(found), len(members))
    had = sorted((len(first[member.member_id]) for member in staying), reverse=True)
    could_stay = sum(min(size, share + (place < larger)) for place, size in enumerate(had))
    stayed = sum(len(set(first[one.member_id]) & set(second[one.member_id])) for one in staying)
    assert stayed == could_stay


def test_the_claim_of_the_later_generation_counts() -> None:
    both = tuple(TopicPartition("t", number) for number in range(2))
    members = [
        GroupMember("late", frozenset({"t"}), owned=both[:1], generation=7),
        GroupMember("old", frozenset({"t"}), owned=both, generation=6),
    ]
    assert names(assign_sticky(members, topics_of(t=2))) == {"late": "t-0", "old": "t-1"}


def test_two_claims_of_one_generation_are_both_void() -> None:
    members = [
        GroupMember(name, frozenset({"t"}), owned=tuple(partitions(owned)), generation=3)
        for name, owned in (("a", "t-1"), ("b", ""), ("c", "t-1"))
    ]
    assert names(assign_sticky(members, topics_of(t=3))) == {"a": "t-0", "b": "t-1", "c": "t-2"}
    held_back = assign_cooperative_sticky(members, topics_of(t=3))
    assert names(held_back) == {"a": "t-0", "b": "", "c": "t-2"}, "both have to give it up first"


def test_a_claim_of_an_older_generation_holds_nothing_back() -> None:
    members = [
        GroupMember("late", frozenset({"t"}), owned=tuple(partitions("t-0")), generation=7),
        GroupMember("old", frozenset({"t"}), owned=tuple(partitions("t-0")), generation=6),
    ]
    assert names(assign_cooperative_sticky(members, topics_of(t=1))) == {"late": "t-0", "old": ""}


@given(st.data())
def test_a_partition_that_changes_owner_is_withheld_for_a_round(data: st.DataObject) -> None:
    topics = data.draw(topics_drawn())
    before = data.draw(members_drawn())
    first = assign_cooperative_sticky(before, topics)
    staying = data.draw(st.lists(st.sampled_from(before), unique=True, min_size=1))
    newcomer = GroupMember("newcomer", frozenset().union(*(member.topics for member in before)))
    members = [*holding(staying, first, 1), newcomer]
    owners = {one: member.member_id for member in members for one in member.owned}
    second = assign_cooperative_sticky(members, topics)
    for member_id, gained in second.items():
        for one in gained:
            assert owners.get(one, member_id) == member_id, f"{one} has two owners"

    # What stays with its owner stays; the rest is free in the next round, which then is the last.
    third = assign_cooperative_sticky(holding(members, second, 2), topics)
    assert_each_has_one_owner(members, topics, third)
    fourth = assign_cooperative_sticky(holding(members, third, 3), topics)
    assert fourth == third


@pytest.mark.parametrize(("topic_count", "partition_count"), [(1, 1_000), (1_000, 1), (50, 20)])
def test_a_thousand_partitions_and_fifty_members_take_no_time(topic_count: int, partition_count: int) -> None:
    topics = {f"t{number}": [frozenset[str]()] * partition_count for number in range(topic_count)}
    members = [GroupMember(f"m{number:02d}", frozenset(topics)) for number in range(50)]
    everything = tuple(TopicPartition(name, number) for name in topics for number in range(partition_count))
    members[0] = members[0]._replace(owned=everything, generation=1)
    started = time.process_time()
    assignment = assign_sticky(members, topics)
    assert time.process_time() - started < FAST_ENOUGH_SECONDS
    assert sizes(assignment) == [20] * 50
    assert set(assignment["m00"]) <= set(everything)


def test_many_different_subscriptions_take_no_time() -> None:
    chance = Random(7)
    topics = {f"t{number}": [frozenset[str]()] * chance.randint(1, 9) for number in range(200)}
    members = [
        GroupMember(f"m{number:02d}", frozenset(chance.sample(sorted(topics), chance.randint(1, 200))))
        for number in range(50)
    ]
    started = time.process_time()
    for generation in range(10):
        assignment = assign_sticky(members, topics)
        members = holding(members, assignment, generation)[chance.randint(0, 2) :]
    assert time.process_time() - started < 10 * FAST_ENOUGH_SECONDS
    assert all(one <= two for one, two in pairwise(sizes(assignment)))
