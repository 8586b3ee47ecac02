"""Administration of a cluster, asked of any of its brokers: topics, leaders, replicas."""

from __future__ import annotations

from typing import Any

import pytest

import klamm
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from tests.client.cluster.places import BROKERS, FAILOVER_PATIENCE_S, Place
from tests.client.faces import Face
from tests.client.topics import unique
from tests.waiting import wait_until

NOWHERE = TopicPartition("nowhere", 0)
RECORD = bytes(100_000)


def test_any_broker_will_do(face: Face, place: Place) -> None:
    for broker in BROKERS:
        with face.admin(**place.at(broker)) as admin:
            assert [one.broker_id for one in admin.describe_cluster().brokers] == list(BROKERS)
            assert [one.rack for one in admin.describe_cluster().brokers] == ["rack-1", "rack-2", "rack-3"]
            topic = unique("anywhere")
            admin.create_topic(topic, 3)
            described = admin.describe_topic(topic)
            assert {len(one.replicas) for one in described.partitions} == {3}
            assert {one.leader for one in described.partitions} == set(BROKERS)
            resource = klamm.ConfigResource.topic(topic)
            admin.alter_config(resource, set={"retention.ms": 1234})
            wait_until(
                lambda asked=admin, about=resource: (
                    asked.describe_config(about)["retention.ms"].value == "1234"
                ),
                "the setting is changed",
            )
            admin.create_partitions(topic, 4)
            assert admin.elect_leaders([(topic, 3)]) == {TopicPartition(topic, 3): False}
            assert set(admin.describe_log_dirs()) == set(BROKERS)
            admin.delete_topic(topic)
            wait_until(
                lambda asked=admin, gone=topic: gone not in asked.list_topics(), "this broker knows of that"
            )


def test_preferred_leaders_are_elected(face: Face, place: Place) -> None:
    topic = place.new_topic([1, 2, 3], [2, 3, 1])
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with face.admin(**place.at()) as admin:
        assert admin.elect_leaders([one, (topic, 1)]) == {one: False, other: False}
        admin.alter_partition_reassignments({one: [3, 1, 2]})
        wait_until(
            lambda: admin.describe_topic(topic).partitions[0].replicas == (3, 1, 2), "the order is new"
        )
        assert place.leader(one) == 1, "the order of replicas alone moves no leader"
        assert admin.elect_leaders([one, other]) == {one: True, other: False}
        wait_until(lambda: place.leader(one) == 3, "the preferred replica leads")
        admin.alter_partition_reassignments({one: [1, 2, 3]})
        assert admin.elect_leaders()[one] is True
        wait_until(lambda: place.leader(one) == 1, "the preferred replica leads")
        assert one not in admin.elect_leaders()
        assert admin.elect_leaders([one], unclean=True) == {one: False}
        with pytest.raises(klamm.BatchFailed) as failed:
            admin.elect_leaders([one, NOWHERE])
        assert failed.value.results == {one: False}
        assert isinstance(failed.value.errors[NOWHERE], klamm.UnknownTopic)


def replicas_of(admin: Any, topic: str) -> tuple[int, ...]:
    shown: tuple[int, ...] = admin.describe_topic(topic).partitions[0].replicas
    return shown


def test_replicas_are_moved(face: Face, place: Place) -> None:
    controller = place.admin.describe_cluster().controller_id
    assert controller is not None
    old, new = [broker for broker in BROKERS if broker != controller]
    topic = place.new_topic([old, controller])
    partition = TopicPartition(topic, 0)
    with face.producer(**place.at()) as producer:
        for _ in range(10):
            producer.send(topic, RECORD, partition=0)
    with face.admin(**place.at()) as admin:
        with place.held_back(old, new, topic):
            admin.alter_partition_reassignments({partition: [new, controller]})
            under_way = admin.list_partition_reassignments()[partition]
            assert set(under_way.replicas) == set(BROKERS)
            assert (under_way.adding_replicas, under_way.removing_replicas) == ((new,), (old,))
            assert admin.list_partition_reassignments([partition, NOWHERE]) == {partition: under_way}
            admin.alter_partition_reassignments({partition: None})
            wait_until(lambda: not admin.list_partition_reassignments([partition]), "it is cancelled")
            before = {old, controller}
            wait_until(lambda: set(replicas_of(admin, topic)) == before, "all know that it is cancelled")
        target = (new, controller, old)
        admin.alter_partition_reassignments({partition: target})
        wait_until(lambda: not admin.list_partition_reassignments([partition]), "it is complete")
        wait_until(lambda: replicas_of(admin, topic) == target, "all know it")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1], ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
    ids=["no move", "nobody", "twice", "unknown", "fewer"],
)
def test_moves_that_are_refused(face: Face, place: Place, target: list[int] | None, code: ErrorCode) -> None:
    partition = TopicPartition(place.new_topic([1, 2]), 0)
    with face.admin(**place.at()) as admin:
        with pytest.raises(klamm.BatchFailed) as failed:
            admin.alter_partition_reassignments(
                {partition: target, NOWHERE: [1, 2]}, allow_replication_factor_change=False
            )
        assert failed.value.errors[partition].code is code
        assert isinstance(failed.value.errors[NOWHERE], klamm.UnknownTopic)
        assert admin.list_partition_reassignments([partition]) == {}
        assert admin.describe_topic(partition.topic).partitions[0].replicas == (1, 2)


def test_a_preferred_replica_that_is_dead(face: Face, place: Place) -> None:
    topic = place.new_topic([3, 1])
    partition = TopicPartition(topic, 0)
    with face.admin(**place.at()) as admin, place.killed(3, topic):
        wait_until(lambda: place.leader(partition) == 1, "the other replica leads")
        with pytest.raises(klamm.BatchFailed) as failed:
            admin.elect_leaders([partition])
        assert failed.value.errors[partition].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_replicas_that_are_eligible_to_lead(face: Face, place: Place) -> None:
    topic = place.new_topic([3, 1], min_insync_replicas=2)
    with face.admin(**place.at()) as admin:

        def eligible() -> tuple[int, ...]:
            shown: tuple[int, ...] = admin.describe_topic(topic).partitions[0].eligible_leader_replicas
            return shown

        assert eligible() == ()
        with place.killed(3, topic):
            wait_until(lambda: eligible() == (3,), "the dead replica is eligible", FAILOVER_PATIENCE_S)
        wait_until(lambda: eligible() == (), "nobody is eligible while all are in sync")
