"""Range and round robin give what Java's give, and Java reads and writes the bytes that we do."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.consumer.group.assignors import ASSIGNORS, GroupMember, Topics
from klamm.client.consumer.group.subscriptions import (
    Ownership,
    read_assignment,
    read_member,
    write_assignment,
    write_subscription,
)
from klamm.model.ids import TopicPartition
from tests.client.consumer.group.drawn_groups import (
    assert_each_has_one_owner,
    holding,
    members_drawn,
    topics_drawn,
)
from tests.clients.remote import Program, java_command
from tests.conftest import cannot_run
from tests.long import cases
from tests.peers.kafka_jars import PeerMissing

EXAMPLES = cases([40, 150], lambda count: count == 40)
"""A round trip to the JVM takes a millisecond."""


def against_java(**drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `given`, with as many examples as EXAMPLES says: more of them for `make test-long`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(*, examples: int, **fixtures: Any) -> None:
            settings(max_examples=examples)(given(**drawn)(test))(**fixtures)

        of_given = signature(given(**drawn)(test))
        examples = Parameter("examples", Parameter.KEYWORD_ONLY, annotation=int)
        run.__signature__ = of_given.replace(  # type: ignore[attr-defined]
            parameters=[*of_given.parameters.values(), examples]
        )
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return pytest.mark.parametrize("examples", EXAMPLES)(run)

    return decorate


@pytest.fixture(scope="module")
def java() -> Iterator[Program]:
    try:
        command = java_command("Assignors")
    except PeerMissing as problem:
        cannot_run(problem)
    program = Program(command, {})
    yield program
    program.close()


def metadata_of(strategy: str, member: GroupMember) -> bytes:
    generation = -1 if member.generation is None else member.generation
    held = Ownership(member.owned, generation)
    return write_subscription(strategy, member.topics, held, held if member.owned else None, member.rack)


def assigned_by_java(java: Program, strategy: str, members: list[GroupMember], topics: Topics) -> Any:
    rows = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "metadata": base64.b64encode(metadata_of(strategy, member)).decode(),
        }
        for member in members
    ]
    racks = {topic: [sorted(each) for each in partitions] for topic, partitions in topics.items()}
    return java.call("assign", strategy=strategy, members=rows, topics=racks)


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
@pytest.mark.parametrize("with_racks", [False, True], ids=["no racks", "racks"])
@against_java(data=st.data())
def test_the_same_members_get_the_same_partitions(
    java: Program, strategy: str, with_racks: bool, data: st.DataObject
) -> None:
    members = data.draw(members_drawn(with_racks=with_racks))
    topics = data.draw(topics_drawn(with_racks=with_racks))
    ours = ASSIGNORS[strategy](members, topics)
    javas = assigned_by_java(java, strategy, members, topics)
    assert {name: sorted(map(str, partitions)) for name, partitions in ours.items()} == {
        name: sorted(partitions) for name, partitions in javas.items()
    }


@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky"])
@against_java(data=st.data())
def test_java_keeps_what_we_shared_out(java: Program, strategy: str, data: st.DataObject) -> None:
    """When the leader changes from ours to Java's, nothing moves: it can read our bytes."""
    members = data.draw(members_drawn(alike=True))
    topics = data.draw(topics_drawn())
    ours = ASSIGNORS[strategy](members, topics)
    javas = assigned_by_java(java, strategy, holding(members, ours, 5), topics)
    assert {name: sorted(map(str, partitions)) for name, partitions in ours.items()} == {
        name: sorted(partitions) for name, partitions in javas.items()
    }


@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky"])
@against_java(data=st.data())
def test_we_keep_what_java_shared_out(java: Program, strategy: str, data: st.DataObject) -> None:
    members = data.draw(members_drawn(alike=True))
    topics = data.draw(topics_drawn())
    javas = {
        name: [TopicPartition(one.rpartition("-")[0], int(one.rpartition("-")[2])) for one in partitions]
        for name, partitions in assigned_by_java(java, strategy, members, topics).items()
    }
    assert_each_has_one_owner(members, topics, javas)
    ours = ASSIGNORS[strategy](holding(members, javas, 5), topics)
    assert ours == {name: sorted(partitions) for name, partitions in javas.items()}


PARTITIONS = st.lists(
    st.builds(TopicPartition, st.sampled_from(["alpha", "beta"]), st.integers(0, 20)), unique=True, max_size=6
)


@pytest.mark.parametrize("strategy", list(ASSIGNORS))
@against_java(data=st.data())
def test_subscriptions_are_written_byte_for_byte_as_java_does(
    java: Program, strategy: str, data: st.DataObject
) -> None:
    topics = data.draw(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), unique=True))
    owned = Ownership(sorted(data.draw(PARTITIONS)), data.draw(st.integers(-1, 9)))
    last = data.draw(st.none() | st.builds(Ownership, PARTITIONS.map(sorted), st.integers(0, 9)))
    rack = data.draw(st.sampled_from([None, "r1"]))
    javas = java.call(
        "subscription",
        strategy=strategy,
        topics=sorted(topics),
        owned=owned.partitions,
        generation=owned.generation,
        last=None if last is None else last.partitions,
        last_generation=-1 if last is None else last.generation,
        rack=rack,
    )
    ours = write_subscription(strategy, topics, owned, last, rack)
    if (
        strategy != "sticky"
    ):  # there Java writes the topics of the last assignment in the order of a hash table
        assert ours == base64.b64decode(javas)
    assert read_member(strategy, "m", None, base64.b64decode(javas)) == read_member(strategy, "m", None, ours)


@against_java(partitions=PARTITIONS)
def test_assignments_are_read_both_ways(java: Program, partitions: list[TopicPartition]) -> None:
    javas = base64.b64decode(java.call("assignment", partitions=partitions))
    assert read_assignment(javas) == frozenset(partitions)
    ours = base64.b64encode(write_assignment(partitions)).decode()
    assert java.call("read_assignment", data=ours) == [str(one) for one in sorted(partitions)]
