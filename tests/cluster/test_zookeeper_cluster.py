"""A cluster on a real ZooKeeper: leaders and the controller are followed when they die, and a ZooKeeper that
is away hurts nobody who reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import klamm
from klamm.client.errors import ClientError, TopicExists
from klamm.testing.cluster import Cluster
from tests.coordination.engines import start_zookeeper
from tests.peers.zookeeper import ZooKeeper
from tests.waiting import wait_until

TOPIC = "kept"
PATIENCE_S = 60.0
LEAST_SESSION_MS = 6000


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with start_zookeeper() as zookeeper:
        yield zookeeper


class Scene:
    """A cluster with a topic of three replicas, and clients."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.admin = stack.enter_context(klamm.Admin(cluster.bootstrap))
        self.producer = stack.enter_context(klamm.Producer(cluster.bootstrap, acks="all"))
        self.admin.create_topic(TOPIC, 3, 3, timeout=PATIENCE_S)

    def produce(self, value: bytes) -> int:
        """The offset of a record that all in-sync replicas of the first partition have."""
        return self.producer.send(TOPIC, value, partition=0).result(PATIENCE_S).offset

    def read(self, count: int) -> list[bytes]:
        """The first records of the first partition."""
        with klamm.Consumer(self.cluster.bootstrap, start="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            values: list[bytes] = []
            self.until(lambda: len(values) >= count or values.extend(self._poll(consumer)), "all are read")
            return values

    def _poll(self, consumer: klamm.Consumer) -> list[bytes]:
        return [record.value for record in consumer.poll(timeout=0.1)]

    def leaders(self) -> list[int | None]:
        partitions = self.admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions
        return [partition.leader for partition in partitions]

    def in_sync(self) -> list[list[int]]:
        partitions = self.admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions
        return [sorted(partition.in_sync_replicas) for partition in partitions]

    def controller(self) -> int | None:
        return self.admin.describe_cluster(timeout=PATIENCE_S).controller_id

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, PATIENCE_S)


def scene(stack: ExitStack, address: str, *, as_processes: bool) -> Scene:
    config = {"broker.session.timeout.ms": LEAST_SESSION_MS}
    return Scene(
        stack.enter_context(Cluster(3, config, as_processes=as_processes, coordination=address)), stack
    )


def test_another_broker_follows_a_killed_leader_that_was_the_controller(zookeeper: ZooKeeper) -> None:
    """A process, because ZooKeeper hears nothing of its death: the session has to time out."""
    with ExitStack() as stack:
        seen = scene(stack, f"zookeeper://{zookeeper.hosts}/killed/leader", as_processes=True)
        assert seen.produce(b"before") == 0
        controller = seen.controller()
        assert controller is not None and controller in seen.leaders()
        wait_until(lambda: seen.in_sync() == [[1, 2, 3]] * 3, "all replicas are in sync")
        seen.cluster.kill(controller)
        others = [broker_id for broker_id in seen.cluster.ids if broker_id != controller]
        seen.until(lambda: seen.controller() in others, "another broker is the controller")
        seen.until(lambda: seen.in_sync() == [others] * 3, "the dead broker has left the ISR")
        assert set(seen.leaders()) <= set(others)
        assert seen.produce(b"after") == 1
        assert seen.read(2) == [b"before", b"after"]
        seen.cluster.start_broker(controller)
        seen.until(lambda: seen.in_sync() == [[1, 2, 3]] * 3, "the broker is back in the ISR")


@pytest.mark.long
def test_another_broker_follows_a_paused_leader_of_this_process(zookeeper: ZooKeeper) -> None:
    with ExitStack() as stack:
        seen = scene(stack, f"zookeeper://{zookeeper.hosts}/paused", as_processes=False)
        seen.until(lambda: seen.in_sync() == [[1, 2, 3]] * 3, "all replicas are in sync")
        assert seen.produce(b"before") == 0
        paused = seen.leaders()[0]
        assert paused is not None
        others = [broker_id for broker_id in seen.cluster.ids if broker_id != paused]
        seen.cluster.pause(paused)
        # Clients that have not met the paused broker: others wait for it until their requests time out.
        bootstrap = seen.cluster.address(others[0])
        with klamm.Admin(bootstrap) as admin:
            seen.until(
                lambda: admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions[0].leader in others,
                "another broker leads",
            )
        with klamm.Producer(bootstrap, acks="all") as producer:
            assert producer.send(TOPIC, b"meanwhile", partition=0).result(PATIENCE_S).offset == 1
        seen.cluster.resume(paused)
        seen.until(lambda: seen.in_sync() == [[1, 2, 3]] * 3, "the broker is back in the ISR")
        assert seen.read(2) == [b"before", b"meanwhile"]


@pytest.mark.long
def test_reads_and_writes_go_on_while_zookeeper_is_away(zookeeper: ZooKeeper) -> None:
    with ExitStack() as stack:
        seen = scene(stack, f"zookeeper://{zookeeper.hosts}/away", as_processes=False)
        assert seen.produce(b"before") == 0
        stack.callback(zookeeper.restore)
        zookeeper.kill(0)
        assert seen.produce(b"meanwhile") == 1
        assert seen.read(2) == [b"before", b"meanwhile"]
        zookeeper.restore()
        assert seen.produce(b"after") == 2

        def creates() -> bool:
            try:
                seen.admin.create_topic("made-afterwards", 3, 3, timeout=PATIENCE_S)
            except TopicExists:
                return True
            except ClientError:
                return False
            return True

        seen.until(creates, "topics can be made again")
        seen.until(lambda: seen.in_sync() == [[1, 2, 3]] * 3, "all replicas are in sync")
        assert seen.read(3) == [b"before", b"meanwhile", b"after"]
