"""Brokers of the test's own process that are paused: what SIGSTOP does to the process of a broker."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

import klamm
from klamm.node.broker import BrokerNode
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.testing import Broker, Cluster
from klamm.testing.wire import WireConnection
from tests.waiting import is_ready, wait_until

TOPIC = "kept"
PATIENCE_S = 60.0
UNANSWERED_S = 0.3
"""How long a test looks for an answer that must not come."""
BOTH = [1, 2]


def test_a_paused_broker_answers_when_it_is_resumed() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as connection:
        connection.call(MetadataRequest())
        broker.pause()
        broker.pause()
        connection.send(MetadataRequest())
        # The system takes connections for a process that is stopped, too.
        with WireConnection(broker.bootstrap) as other:
            other.send(MetadataRequest())
            assert not is_ready(other.socket, select.POLLIN, UNANSWERED_S)
            assert not is_ready(connection.socket, select.POLLIN, 0)
            broker.resume()
            broker.resume()
            assert connection.receive().brokers and other.receive().brokers


def test_a_broker_that_does_not_run_cannot_be_paused() -> None:
    broker = Broker()
    with broker:
        pass
    with pytest.raises(AssertionError, match="not running"):
        broker.pause()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two brokers and a topic that both hold."""
    with Cluster(2) as cluster:
        with klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 2, timeout=PATIENCE_S)
        wait_for_isr(cluster, BOTH)
        yield cluster


def node_of(cluster: Cluster, broker_id: int) -> BrokerNode:
    node = cluster.broker(broker_id).node
    assert node is not None
    return node


def in_sync_as_seen_by(cluster: Cluster, broker_id: int) -> list[int]:
    with klamm.Admin(cluster.address(broker_id)) as admin:
        return sorted(admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions[0].in_sync_replicas)


def wait_for_isr(cluster: Cluster, expected: list[int]) -> None:
    """As the brokers see it that are expected in it."""
    wait_until(
        lambda: all(in_sync_as_seen_by(cluster, each) == expected for each in expected),
        f"in sync are {expected}",
        PATIENCE_S,
    )


def test_a_paused_broker_appends_nothing_loses_its_session_and_registers_again(cluster: Cluster) -> None:
    with klamm.Admin(cluster.bootstrap) as admin:
        paused = admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions[0].leader
    assert paused is not None
    other = 3 - paused
    node = node_of(cluster, paused)
    partition = node.partitions.find(TOPIC, 0)
    assert node.membership is not None and partition is not None
    epoch = node.membership.broker_epoch
    assert epoch is not None
    with klamm.Producer(cluster.bootstrap, acks="all", request_timeout_ms=1000) as producer:
        assert producer.send(TOPIC, b"before").result(PATIENCE_S).offset == 0
        cluster.pause(paused)
        delivery = producer.send(TOPIC, b"meanwhile")
        wait_for_isr(cluster, [other])
        assert delivery.result(PATIENCE_S).offset == 1
        # Nothing of the broker has run: it has not appended what was sent to it, and believes that it leads.
        assert partition.log.log_end_offset == 1
        assert partition.leader is not None and node.membership.broker_epoch == epoch
        cluster.resume(paused)
        wait_for_isr(cluster, BOTH)
        assert producer.send(TOPIC, b"after").result(PATIENCE_S).offset == 2
    assert partition.log.log_end_offset == 3
    assert node.membership.broker_epoch is not None and node.membership.broker_epoch > epoch


def test_a_paused_broker_can_be_stopped_killed_and_restarted(cluster: Cluster) -> None:
    cluster.pause(2)
    cluster.kill(2)
    assert cluster.running == [1]
    cluster.start_broker(2)
    wait_for_isr(cluster, BOTH)
    cluster.pause(2)
    cluster.restart(2)
    wait_for_isr(cluster, BOTH)
    cluster.pause(1)
    cluster.pause(2)
    cluster.stop()
    assert cluster.running == []
    cluster.start()
    wait_for_isr(cluster, BOTH)


def test_a_test_that_fails_leaves_no_paused_broker_behind() -> None:
    with pytest.raises(ZeroDivisionError), Cluster(2) as cluster:
        brokers = [cluster.broker(each) for each in BOTH]
        for broker_id in BOTH:
            cluster.pause(broker_id)
        raise ZeroDivisionError
    assert [broker.node for broker in brokers] == [None, None]
