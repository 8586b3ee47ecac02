"""Topics that change under a client: made anew, given more partitions, emptied. The user does nothing."""

from __future__ import annotations

import contextlib

import pytest

import klamm
from klamm.client.results import CommittedOffset, TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face
from tests.client.reading import collect, fill, poll_until, read_topic, values
from tests.waiting import wait_until

SOON = {"metadata_max_age_ms": 300}
SOON_AND_NEVER_MAKING = {**SOON, "allow_auto_create_topics": False}


def make_anew(face: Face, bootstrap: str, topic: str, partitions: int = 1) -> None:
    with face.admin(bootstrap) as admin:
        admin.delete_topic(topic)
        # A producer that asks for it meanwhile has it created: with one partition, as brokers do.
        with contextlib.suppress(klamm.TopicExists):
            admin.create_topic(topic, partitions)
        wait_until(lambda: len(admin.describe_topic(topic).partitions) == partitions, "it is there again")


def test_a_producer_whose_topic_is_made_anew(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with face.producer(bootstrap) as producer:
        assert [producer.send(topic, b"old").result().offset for _ in range(3)] == [0, 1, 2]
        make_anew(face, bootstrap, topic)
        assert [producer.send(topic, b"new").result().offset for _ in range(3)] == [0, 1, 2]
    assert values(read_topic(face, bootstrap, topic, 3)) == [b"new"] * 3


def test_a_topic_is_made_anew_with_fewer_partitions(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    with face.producer(bootstrap, **SOON) as producer:
        for index in range(3):
            producer.send(topic, b"old", partition=index).result()
        make_anew(face, bootstrap, topic, 1)
        # What stuck to a partition that is gone fails; what comes after it goes where it can.
        failure = producer.send(topic, b"new").exception()
        assert failure is None or isinstance(failure, klamm.UnknownTopic)
        assert producer.send(topic, b"new").result().partition == 0
        wait_until(
            lambda: isinstance(producer.send(topic, b"new", partition=2).exception(), klamm.ClientError),
            "partition 2 is not there any more",
        )


def test_a_consumer_whose_topic_is_made_anew(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """It was at offset 5 of the old one, and begins the new one where `start` says."""
    topic = new_topic()
    fill(face, bootstrap, topic, 5)
    with face.consumer(bootstrap, start="earliest", **SOON_AND_NEVER_MAKING) as consumer:
        consumer.assign([(topic, 0)])
        collect(consumer, 5)
        make_anew(face, bootstrap, topic)
        sent = fill(face, bootstrap, topic, 3)
        assert values(collect(consumer, 3)) == sent


def test_a_group_whose_topic_is_made_anew(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(face, bootstrap, topic, 5)
    with face.consumer(
        bootstrap, group=topic, topics=[topic], start="earliest", **SOON_AND_NEVER_MAKING
    ) as consumer:
        collect(consumer, 5)
        consumer.commit()
        make_anew(face, bootstrap, topic)
        sent = fill(face, bootstrap, topic, 3)
        assert values(collect(consumer, 3)) == sent


def test_records_without_a_key_find_new_partitions(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    with face.producer(bootstrap, batch_size=200, **SOON) as producer, face.admin(bootstrap) as admin:
        producer.send(topic, bytes(100)).result()
        admin.create_partitions(topic, 3)
        seen = {0}

        def has_seen_all() -> bool:
            seen.add(producer.send(topic, bytes(100)).result().partition)
            return seen == {0, 1, 2}

        wait_until(has_seen_all, "records go to the new partitions")
        # One that was asked for by its number is looked up at once.
        admin.create_partitions(topic, 4)
        assert producer.send(topic, b"", partition=3).result().partition == 3


def test_a_deleted_topic_of_a_subscription(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    stays, goes = new_topic(), new_topic()
    fill(face, bootstrap, goes, 2)
    fill(face, bootstrap, stays, 2)
    with face.consumer(
        bootstrap,
        group=stays,
        topics=[stays, goes],
        start="earliest",
        heartbeat_interval_ms=100,
        **SOON_AND_NEVER_MAKING,
    ) as consumer:
        collect(consumer, 4)
        with face.admin(bootstrap) as admin:
            admin.delete_topic(goes)
        poll_until(
            consumer,
            lambda: consumer.assignment() == {TopicPartition(stays, 0)},
            "the deleted topic is not read any more",
        )
        fill(face, bootstrap, stays, 3)
        assert len(collect(consumer, 3)) == 3


@pytest.mark.parametrize("is_automatic", [True, False])
def test_offsets_that_were_set_by_hand_stay(
    face: Face, bootstrap: str, new_topic: NewTopic, is_automatic: bool
) -> None:
    """A program that only sets a group's offsets reads nothing, and must not commit where it would read."""
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    fill(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, group=topic, enable_auto_commit=is_automatic) as consumer:
        consumer.assign([partition])
        assert consumer.position(partition) == 10
        consumer.commit({partition: CommittedOffset(3)})
    with face.consumer(bootstrap, group=topic) as consumer:
        assert consumer.committed([partition])[partition].offset == 3
