"""Leaders move under a producer and a consumer, which find them: nothing is lost, doubled or reordered."""

from __future__ import annotations

import pytest

import klamm
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.testing.wire import WireConnection
from tests.client.cluster.places import BROKERS, Place
from tests.client.cluster.traffic import Traffic
from tests.client.faces import Face
from tests.client.reading import collect, values
from tests.waiting import wait_until


def test_leaders_that_are_elected(face: Face, place: Place) -> None:
    partition = TopicPartition(place.new_topic([1, 2, 3], min_insync_replicas=2), 0)
    with Traffic(face, place, partition) as traffic:
        for broker in (2, 3, 1):
            place.move_leader(partition, broker)
            traffic.go_on()
    assert traffic.records[-1].leader_epoch >= traffic.records[0].leader_epoch + 3


def test_partitions_that_are_moved_to_other_brokers(face: Face, place: Place) -> None:
    """The broker that a client talks to has not even a replica afterwards."""
    partition = TopicPartition(place.new_topic([1, 2]), 0)
    with Traffic(face, place, partition) as traffic:
        for target in ([3], [2, 1]):
            place.admin.alter_partition_reassignments({partition: target})
            wait_until(lambda: not place.admin.list_partition_reassignments([partition]), "it is complete")
            wait_until(lambda goal=target: place.leader(partition) in goal, f"a broker of {target} leads")
            traffic.go_on()


def test_a_leader_that_goes_and_returns_unseen(face: Face, place: Place) -> None:
    """The consumer still has the old epoch: it is fenced, asks where that epoch ended, and goes on."""
    partition = TopicPartition(place.new_topic([1, 2, 3]), 0)
    with (
        face.producer(**place.at()) as producer,
        face.consumer(**place.at(), start="earliest", metadata_max_age_ms=300_000) as consumer,
    ):
        producer.send(partition.topic, b"before", partition=0).result()
        consumer.assign([partition])
        assert values(collect(consumer, 1)) == [b"before"]
        consumer.pause(partition)
        consumer.poll(timeout=0)
        # Counted before the leader moves: a fetch that still waits may be the one that is refused.
        refused = consumer.counters()["fetch_errors"]
        place.move_leader(partition, 2)
        place.move_leader(partition, 1)
        producer.send(partition.topic, b"after", partition=0).result()
        consumer.resume(partition)
        (record,) = collect(consumer, 1)
        assert (record.value, record.offset) == (b"after", 1)
        assert consumer.counters()["fetch_errors"] > refused


@pytest.mark.parametrize("shared_place", ["klamm"], indirect=True)
def test_a_log_that_was_cut(face: Face, place: Place) -> None:
    """An unclean election loses records that a consumer has read. Two brokers are dead at the same time for
    that, and a quorum of three in Apache Kafka would be lost."""
    partition = TopicPartition(place.new_topic([2, 3]), 0)
    with (
        face.producer(**place.at()) as producer,
        face.consumer(**place.at(), start="none") as consumer,
        face.admin(**place.at()) as admin,
    ):
        consumer.assign([partition])
        consumer.seek(partition, 0)
        producer.send(partition.topic, b"kept", partition=0).result()
        place.cluster.kill(3)
        try:
            producer.send(partition.topic, b"lost", partition=0).result()
            assert values(collect(consumer, 2)) == [b"kept", b"lost"]
        finally:
            place.cluster.kill(2)
            place.cluster.restart(3)
        try:
            wait_until(lambda: place.leader(partition) is None, "nobody leads")
            assert admin.elect_leaders([partition], unclean=True) == {partition: True}
            wait_until(lambda: place.leader(partition) == 3, "the other replica leads")
            assert producer.send(partition.topic, b"new", partition=0).result().offset == 1
            with pytest.raises(klamm.OffsetOutOfRange, match="was cut to offset 1"):
                collect(consumer, 1)
            consumer.seek(partition, 1)
            assert values(collect(consumer, 1)) == [b"new"]
        finally:
            place.restart(2, partition.topic)


def test_epochs_are_compared(place: Place) -> None:
    partition = TopicPartition(place.new_topic([1, 2, 3]), 0)
    place.move_leader(partition, 2)

    def ask(broker: int, current: int) -> ErrorCode:
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=current)
        topic = OffsetForLeaderTopic(topic=partition.topic, partitions=[asked])
        with WireConnection(place.cluster.address(broker)) as connection:
            (answer,) = connection.call(OffsetForLeaderEpochRequest(topics=[topic])).topics
        return ErrorCode(answer.partitions[0].error_code)

    def known_epoch() -> int | None:
        epoch = place.leader_epoch(partition)  # of a broker that may not have heard of the newest yet
        return epoch if ask(2, epoch) is ErrorCode.NONE else None

    epoch = wait_until(known_epoch, "the new leader serves")
    assert epoch is not None
    assert ask(2, epoch - 1) is ErrorCode.FENCED_LEADER_EPOCH
    assert ask(2, epoch + 1) is ErrorCode.UNKNOWN_LEADER_EPOCH
    # A broker that has not heard of the newest epoch answers UNKNOWN_LEADER_EPOCH.
    wait_until(lambda: ask(1, epoch) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker refuses")


def test_any_broker_is_enough_to_begin_with(face: Face, place: Place) -> None:
    for broker in BROKERS:
        leader = broker % len(BROKERS) + 1
        topic = place.new_topic([leader, broker])
        with face.producer(**place.at(broker)) as producer:
            assert producer.send(topic, b"hello").result().offset == 0
        with face.consumer(**place.at(broker), start="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert values(collect(consumer, 1)) == [b"hello"]
