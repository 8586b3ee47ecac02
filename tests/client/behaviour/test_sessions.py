"""Sessions and claims: the group's life as control flow, with tasks and with threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from klamm.client.results import Record, TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.behaviour.session_members import SessionMember
from tests.client.behaviour.test_groups import FAST
from tests.client.faces import Face
from tests.client.reading import fill
from tests.waiting import wait_until

PARTITIONS = 4
RECORDS = 20


@pytest.fixture
def members(face: Face) -> Iterator[list[SessionMember]]:
    started: list[SessionMember] = []
    yield started
    for member in started:
        member.close()


@pytest.fixture
def topic(face: Face, bootstrap: str, new_topic: NewTopic) -> str:
    name = new_topic(PARTITIONS)
    for index in range(PARTITIONS):
        fill(face, bootstrap, name, RECORDS, index)
    return name


def join(face: Face, bootstrap: str, topic: str, strategy: str = "range", **how: Any) -> SessionMember:
    consumer = face.consumer(
        bootstrap,
        group=topic,
        topics=[topic],
        start="earliest",
        partition_assignment_strategy=strategy,
        **FAST,
    )
    return SessionMember(face, consumer, **how)


def share(members: list[SessionMember]) -> None:
    def is_shared() -> bool:
        owned = [one for member in members for one in member.claims]
        for member in members:
            member.checked(True)
        return len(owned) == len(set(owned)) == PARTITIONS and all(member.claims for member in members)

    wait_until(is_shared, f"{len(members)} members share the partitions")


def places(records: list[Record]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


EVERYTHING = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_is_drained_is_worked_off_once(
    face: Face, bootstrap: str, topic: str, members: list[SessionMember], strategy: str
) -> None:
    """A record in work is finished and committed before its partition goes to another member."""
    first = join(face, bootstrap, topic, strategy)
    members.append(first)
    first.wait_for(1)
    first.gate.clear()
    second = join(face, bootstrap, topic, strategy)
    members.append(second)
    # The rebalance waits for the workers, which stay with their records until the gate opens.
    first.gate.set()
    share(members)
    wait_until(
        lambda: len(first.finished) + len(second.finished) >= len(EVERYTHING), "all records are worked off"
    )
    assert places(first.finished + second.finished) == EVERYTHING
    assert first.session_count >= 2, "a rebalance ends all claims"
    for index in range(PARTITIONS):
        offsets = [record.offset for record in first.finished if record.partition == index]
        assert offsets == sorted(offsets)


def test_what_is_cancelled_comes_again(
    face: Face, bootstrap: str, topic: str, members: list[SessionMember]
) -> None:
    """A record whose work was cancelled is not finished: whoever has its partition next gets it."""
    first = join(face, bootstrap, topic, on_revoke="cancel")
    members.append(first)
    first.gate.clear()
    wait_until(lambda: first.checked(len(first.started) == PARTITIONS), "every claim has a record in work")
    assert not first.finished
    second = join(face, bootstrap, topic, on_revoke="cancel")
    members.append(second)
    share(members)
    first.gate.set()
    wait_until(
        lambda: len(first.finished) + len(second.finished) >= len(EVERYTHING), "all records are worked off"
    )
    assert places(first.finished + second.finished) == EVERYTHING


def test_a_new_member_goes_on_where_a_closed_one_ended(
    face: Face, bootstrap: str, topic: str, members: list[SessionMember]
) -> None:
    first = join(face, bootstrap, topic)
    first.wait_for(10)
    first.close()
    second = join(face, bootstrap, topic)
    members.append(second)
    second.wait_for(len(EVERYTHING) - len(first.finished))
    assert places(first.finished + second.finished) == EVERYTHING


def test_claims_know_their_partitions(
    face: Face, bootstrap: str, topic: str, members: list[SessionMember]
) -> None:
    members.append(join(face, bootstrap, topic))
    share(members)
    assert members[0].claims == {TopicPartition(topic, index) for index in range(PARTITIONS)}
