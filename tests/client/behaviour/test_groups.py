"""Groups: members share partitions, come and go, and come back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import klamm
from klamm.client.results import TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.behaviour.members import Member, share
from tests.client.faces import Face
from tests.client.reading import collect, fill, poll_until, values
from tests.client.topics import make_topic, unique

ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]
FAST = {"heartbeat_interval_ms": 100, "session_timeout_ms": 10_000, "metadata_max_age_ms": 500}


def partitions_of(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in range(count)}


@pytest.fixture
def members(face: Face) -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        member.stop()


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_two_members_share(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member], assignor: str
) -> None:
    topic = new_topic(4)
    for index in range(4):
        fill(face, bootstrap, topic, 5, index)

    def join() -> Member:
        consumer = face.consumer(
            bootstrap,
            group=topic,
            topics=[topic],
            start="earliest",
            partition_assignment_strategy=assignor,
            **FAST,
        )
        members.append(Member(consumer))
        return members[-1]

    first = join()
    share([first], partitions_of(topic, 4))
    first.wait_for(20)
    second = join()
    share([first, second], partitions_of(topic, 4))
    assert len(first.assignment) == len(second.assignment) == 2
    with face.producer(bootstrap) as producer:
        for index in range(4):
            producer.send(topic, b"late", partition=index).result()
    first.wait_for(22)
    second.wait_for(2)
    assert len(first.records) == 22 and len(second.records) == 2, "a commit was lost in the rebalance"
    second.close()
    share([first], partitions_of(topic, 4))


def test_members_that_cannot_agree(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    topic = new_topic(2)
    members.append(
        Member(
            face.consumer(
                bootstrap, group=topic, topics=[topic], partition_assignment_strategy="range", **FAST
            )
        )
    )
    members[0].wait_for_assignment(2)
    with face.consumer(
        bootstrap, group=topic, topics=[topic], partition_assignment_strategy="roundrobin"
    ) as other:
        with pytest.raises(klamm.GroupError) as refused:
            other.poll(timeout=10)
        assert "partition_assignment_strategy" in refused.value.advice


def test_callbacks_of_a_rebalance(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    topic = new_topic(2)
    told: list[tuple[str, set[TopicPartition]]] = []
    consumer = face.consumer(bootstrap, group=topic, **FAST)
    consumer.subscribe(
        [topic],
        on_assigned=lambda partitions: told.append(("assigned", set(partitions))),
        on_revoked=lambda partitions: told.append(("revoked", set(partitions))),
        on_lost=lambda partitions: told.append(("lost", set(partitions))),
    )
    members.append(Member(consumer))
    share(members, partitions_of(topic, 2))
    assert told == [("assigned", partitions_of(topic, 2))]
    members.append(Member(face.consumer(bootstrap, group=topic, topics=[topic], **FAST)))
    share(members, partitions_of(topic, 2))
    assert told[1][0] == "revoked" and told[1][1] >= members[1].assignment
    members[0].close()
    assert told[-1] == ("revoked", members[0].assignment)
    assert not [one for one in told if one[0] == "lost"]


def test_a_pattern_finds_topics_that_come_later(face: Face, bootstrap: str, members: list[Member]) -> None:
    prefix = unique("pattern")
    first = make_topic(bootstrap, f"{prefix}.one")
    make_topic(bootstrap, f"not-{prefix}.one")
    consumer = face.consumer(bootstrap, group=prefix, start="earliest", **FAST)
    consumer.subscribe(re.compile(re.escape(prefix) + r"\..*"))
    members.append(Member(consumer))
    share(members, partitions_of(first, 1))
    second = make_topic(bootstrap, f"{prefix}.two", partitions=2)
    share(members, partitions_of(first, 1) | partitions_of(second, 2))
    fill(face, bootstrap, second, 5, 1)
    members[0].wait_for(5)


def test_partitions_that_come_later(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    topic = new_topic(1)
    members.append(Member(face.consumer(bootstrap, group=topic, topics=[topic], start="earliest", **FAST)))
    members[0].wait_for_assignment(1)
    with face.admin(bootstrap) as admin:
        admin.create_partitions(topic, 3)
    share(members, partitions_of(topic, 3))
    with face.producer(bootstrap) as producer:
        producer.send(topic, b"value", partition=2).result()
    members[0].wait_for(1)


def test_a_static_member_comes_back(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    """Within its session it gets its partitions back, and the others notice nothing."""
    topic = new_topic(4)
    told: list[str] = []

    def join(instance: str, *, listen: bool = False) -> Member:
        consumer = face.consumer(bootstrap, group=topic, group_instance_id=instance, **FAST)
        callbacks = (
            {
                "on_assigned": lambda partitions: told.append("assigned"),
                "on_revoked": lambda partitions: told.append("revoked"),
            }
            if listen
            else {}
        )
        consumer.subscribe([topic], **callbacks)
        members.append(Member(consumer))
        return members[-1]

    stays, leaves = join("stays", listen=True), join("leaves")
    share([stays, leaves], partitions_of(topic, 4))
    before, told_before = set(leaves.assignment), list(told)
    leaves.close()
    back = join("leaves")
    share([stays, back], partitions_of(topic, 4))
    assert back.assignment == before
    assert told == told_before


def test_a_static_member_that_is_replaced(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    """Two with the same name: the older one is told, with an error that says why."""
    topic = new_topic(1)
    options = {"group": topic, "topics": [topic], "group_instance_id": "one", **FAST}
    with face.consumer(bootstrap, **options) as older:
        poll_until(older, older.assignment, "it is assigned")
        members.append(Member(face.consumer(bootstrap, **options)))
        members[0].wait_for_assignment(1)
        with pytest.raises(klamm.FencedMember) as fenced:
            poll_until(older, lambda: False, "it is fenced")
        assert "group_instance_id" in fenced.value.advice


def test_unsubscribe_leaves_the_group(
    face: Face, bootstrap: str, new_topic: NewTopic, members: list[Member]
) -> None:
    topic = new_topic(2)
    for _ in range(2):
        members.append(Member(face.consumer(bootstrap, group=topic, topics=[topic], **FAST)))
    share(members, partitions_of(topic, 2))
    members[0].ask(lambda consumer: consumer.unsubscribe())
    members[0].stop()
    assert members[0].consumer.assignment() == set() or not members[0].consumer.assignment()
    share([members[1]], partitions_of(topic, 2))


def test_a_group_of_somebody_else_keeps_its_offsets(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 5)
    for group in ("one", "two"):
        with face.consumer(bootstrap, group=f"{topic}-{group}", topics=[topic], start="earliest") as consumer:
            assert values(collect(consumer, 5)) == sent
