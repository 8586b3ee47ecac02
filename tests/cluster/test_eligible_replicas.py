"""Replicas that left an ISR below min.insync.replicas have all that is committed, and may lead."""

from __future__ import annotations

import shutil

import pytest

import klamm
from klamm.cluster.config_changes import alter_config
from klamm.cluster.controller.elections import ElectionType
from klamm.cluster.image import ALL_BROKERS, NO_LEADER
from klamm.config.alterations import Alteration, AlterOperation
from klamm.config.rows import ResourceType
from klamm.model.errors import ErrorCode, KafkaError
from klamm.testing.cluster import Cluster
from tests.waiting import wait_until

from .events import Events

RECORD_COUNT = 20
PATIENCE_S = 60.0


def cluster_of_three(minimum="2"):
    events = Events(1, 2, 3)
    events.create("t", [1, 2, 3], min_insync_replicas=minimum)
    return events


def state(events):
    partition = events.partition()
    return partition.leader, partition.isr, partition.eligible_replicas


def test_who_leaves_an_isr_below_the_minimum_is_eligible_until_the_isr_is_large_enough():
    events = cluster_of_three()
    events.fail(3)
    assert state(events) == (1, (1, 2), ()), "the two others go on committing without broker 3"
    events.alter_isr([1])
    assert state(events) == (1, (1,), (2,))
    events.check_store()
    events.start(3)
    events.alter_isr([1, 3])
    assert state(events) == (1, (1, 3), ()), "they go on committing without broker 2"
    events.check_store()


def test_an_eligible_replica_leads_when_no_member_of_the_isr_can():
    events = cluster_of_three()
    events.fail(3)
    events.alter_isr([1])
    events.fail(1)
    assert state(events) == (2, (2,), (1,)), "broker 1 has all that is committed, too"
    events.start(1, clean=False)
    assert state(events) == (2, (2,), ())
    events.check_store()


def test_nobody_is_eligible_if_one_replica_may_commit():
    events = cluster_of_three(minimum="1")
    events.fail(2, 3)
    events.fail(1)
    events.start(2, 3)
    assert state(events) == (NO_LEADER, (1,), ())


def test_members_that_leave_together_are_eligible():
    events = cluster_of_three()
    events.fail(2, 3)
    assert state(events) == (1, (1,), (2, 3))


def test_a_last_member_that_may_have_lost_records_waits_for_eligible_replicas():
    events = cluster_of_three()
    events.shut_down(3)
    events.fail(3)
    events.shut_down(2)
    events.fail(2)
    events.fail(1)
    assert state(events) == (NO_LEADER, (1,), (2,))
    events.start(1, clean=False)
    assert state(events) == (NO_LEADER, (2,), ()), "broker 1 is trusted no longer"
    events.start(3)
    assert state(events) == (NO_LEADER, (2,), ()), "broker 3 left while the others went on"
    events.start(2)
    assert state(events) == (2, (2,), ())
    events.check_store()


def test_if_nobody_is_trusted_the_last_member_leads():
    events = cluster_of_three()
    events.fail(3)
    events.fail(2)
    events.fail(1)
    events.start(1, clean=False)
    events.start(2, clean=False)
    assert state(events) == (2, (2,), ())


def test_a_replica_whose_log_cannot_be_used_is_not_eligible():
    events = cluster_of_three()
    events.fail(3)
    events.change_replica(2, is_offline=True)
    assert state(events) == (1, (1,), ())


def test_an_unclean_election_leaves_nobody_eligible():
    events = cluster_of_three()
    events.fail(3)
    events.fail(2)
    events.fail(1)
    events.start(3)
    assert state(events) == (NO_LEADER, (1,), (2,))
    events.elect(ElectionType.UNCLEAN, ("t", 0))
    assert state(events) == (3, (3,), ())


def test_an_eligible_replica_leads_if_the_log_of_the_last_member_cannot_be_used():
    events = cluster_of_three()
    events.fail(2, 3)
    events.start(2, 3)
    assert state(events) == (1, (1,), (2, 3))
    events.change_replica(1, is_offline=True)
    assert state(events) == (2, (2,), (3,))


def test_an_unclean_election_prefers_an_eligible_replica():
    events = cluster_of_three()
    events.fail(1)
    events.fail(3)
    events.fail(2)
    assert state(events) == (NO_LEADER, (2,), (3,))
    events.configure("t", unclean_leader_election_enable="true")
    events.start(1, 3)
    assert state(events) == (3, (3,), (2,))


def test_a_higher_minimum_begins_a_new_leader_epoch():
    """A leader that does not know it yet commits alone, and must not make another eligible."""
    events = cluster_of_three(minimum="1")
    before = events.partition()
    events.configure("t", min_insync_replicas="2")
    assert events.partition().leader_epoch == before.leader_epoch + 1
    refused = events.alter_isr([1], leader_epoch=before.leader_epoch)
    assert refused.code == ErrorCode.FENCED_LEADER_EPOCH
    events.configure("t", retention_ms="5")
    assert events.partition().leader_epoch == before.leader_epoch + 1
    events.check_store()


def test_one_broker_alone_cannot_need_fewer_replicas():
    """The controller would take replicas for eligible that lack what this broker commits without them."""
    events = Events(1, 2, 3, config={"min.insync.replicas": "2"})
    alterations = [Alteration("min.insync.replicas", AlterOperation.SET, "1")]
    with pytest.raises(KafkaError) as refused:
        alter_config(events.image, events.config, ResourceType.BROKER, "2", alterations, controller_epoch=3)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert alter_config(
        events.image, events.config, ResourceType.BROKER, ALL_BROKERS, alterations, controller_epoch=3
    ).delta


@pytest.mark.parametrize(("minimum", "eligible"), [("1", ()), ("2", (2,)), ("3", (2,))])
def test_a_lower_minimum_lets_the_isr_commit_alone_so_nobody_is_eligible(minimum, eligible):
    events = cluster_of_three()
    events.fail(3)
    events.fail(2)
    change = events.configure("t", min_insync_replicas=minimum)
    assert state(events) == (1, (1,), eligible)
    events.check_store()
    paths = [operation.path for operation in change.operations]
    assert paths[-1] == "/config/topics/t", "leaders must not commit alone before the store says so"


def test_the_minimum_counts_replicas_that_there_are():
    events = Events(1, 2)
    events.create("t", [1, 2], min_insync_replicas="3")
    events.fail(2)
    assert state(events) == (1, (1,), (2,))
    events.start(2)
    events.alter_isr([1, 2])
    assert state(events) == (1, (1, 2), ())


# ---- real brokers


def written(cluster):
    """Acknowledged records on the replicas that are returned. All but the last one stop cleanly."""
    with klamm.Admin(cluster.bootstrap) as admin:
        admin.create_topics([klamm.NewTopic("t", 1, 3, {"min.insync.replicas": 2})], timeout=PATIENCE_S)
        (partition,) = admin.describe_topic("t", timeout=PATIENCE_S).partitions
    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(RECORD_COUNT):
            producer.send("t", b"%d" % number).result(PATIENCE_S)
    first, second, last = partition.replicas
    cluster.stop_broker(first)
    cluster.stop_broker(second)
    return first, second, last


def read(cluster):
    with klamm.Consumer(cluster.bootstrap, topics=["t"], start="earliest") as consumer:
        values = []
        while len(values) < RECORD_COUNT:
            records = consumer.poll(timeout=PATIENCE_S)
            assert records, f"{len(values)} of {RECORD_COUNT} acknowledged records are there"
            values += [record.value for record in records]
    return values


def test_the_last_member_returns_with_an_empty_disk_and_no_record_is_lost():
    with Cluster(3) as cluster:
        first, second, last = written(cluster)
        cluster.kill(last)
        shutil.rmtree(cluster.data_dir / f"broker-{last}")
        for broker_id in (last, second, first):
            cluster.start_broker(broker_id)
        assert read(cluster) == [b"%d" % number for number in range(RECORD_COUNT)]


def test_the_last_member_stays_away_and_the_partition_is_led():
    with Cluster(3) as cluster:
        first, second, last = written(cluster)
        cluster.kill(last)
        for broker_id in (second, first):
            cluster.start_broker(broker_id)
        node = cluster.broker(second).node

        def is_led():
            partition = node.cluster.image.topics["t"].partitions[0]
            return partition.leader == second and len(partition.isr) == 2

        wait_until(is_led, lambda: f"{node.cluster.image.topics['t'].partitions}", PATIENCE_S)
        assert read(cluster) == [b"%d" % number for number in range(RECORD_COUNT)]
