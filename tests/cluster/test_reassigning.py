"""Partitions move between real brokers while a producer writes to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import klamm
from klamm.cluster.controller.topics import NewTopic
from klamm.model.ids import TopicPartition
from klamm.node.broker import BrokerNode
from klamm.testing import Cluster
from tests.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def test_partitions_that_are_moved_can_be_written_all_the_time(cluster: Cluster) -> None:
    """Half of them keep their leader: it hears of its new ISR before it hears of its new replicas."""
    moves = [
        move
        for a, b, c in ((1, 2, 3), (2, 3, 1), (3, 1, 2))
        for move in (([a, b], [a, c]), ([a, b], [c, a]), ([a, b], [b, c]), ([a, b], [c]))
    ]
    with klamm.Admin(cluster.bootstrap) as admin:
        controller = cluster.broker(admin.describe_cluster(timeout=PATIENCE_S).controller_id)
    control = controller.node.cluster
    topic = NewTopic("moved", assignment=[(at, start) for at, (start, _) in enumerate(moves)])
    controller.run(control.create_topics([topic]))
    written = [0] * len(moves)
    is_enough = threading.Event()

    def write() -> None:
        while not is_enough.is_set():
            sent = [producer.send("moved", b"record", partition=at) for at in range(len(moves))]
            for at, each in enumerate(sent):
                each.result(PATIENCE_S)
                written[at] += 1

    def is_moved(at: int) -> bool:
        told = control.image.topics["moved"].partitions[at]
        found = _node(cluster, told.leader).partitions.find("moved", at)
        knows = found is not None and found.leader is not None and found.leader.isr.pending is None
        return list(told.replicas) == moves[at][1] and knows and list(found.replicas) == moves[at][1]

    with klamm.Producer(cluster.bootstrap, acks="all") as producer:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: min(written) > 0, "all partitions are written", PATIENCE_S)
            targets = [(TopicPartition("moved", at), target) for at, (_, target) in enumerate(moves)]
            assert controller.run(control.reassign_partitions(targets)) == [None] * len(moves)
            for at, move in enumerate(moves):
                wait_until(lambda at=at: is_moved(at), f"the leader knows of {at}: {move}", PATIENCE_S)
            before = list(written)
            wait_until(
                lambda: all(now > then for now, then in zip(written, before, strict=True)),
                lambda: f"all partitions are written: {before}, then {written}",
                PATIENCE_S,
            )
        finally:
            is_enough.set()
            writer.join(PATIENCE_S)
    for at, (_, (leader, *_)) in enumerate(moves):
        partition = _node(cluster, leader).partitions.find("moved", at)
        assert partition is not None and partition.log.log_end_offset == written[at]


def _node(cluster: Cluster, broker_id: int) -> BrokerNode:
    return cluster.broker(broker_id).node
