"""A follower's partitions on the loop of a test; their leader is a broker of its own, over a real socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from klamm.client.network.connection import BrokerConnection
from klamm.cluster.image import (
    BrokerImage,
    Endpoint,
    PartitionImage,
    TopicImage,
    difference,
    image_of_topics,
)
from klamm.config.loading import BrokerConfig
from klamm.model.ids import TopicId
from klamm.node.peers import REPLICATION, Peers
from klamm.records.batch import parse_header
from klamm.records.builder import build_batch, number_records
from klamm.replication.context import ReplicationContext
from klamm.replication.fetcher import FetchSettings
from klamm.replication.fetchers import KEEPING_UP, Fetchers
from klamm.replication.isr import IsrChange
from klamm.replication.partition import Partition
from klamm.replication.partitions import Partitions, TopicSettings
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs
from klamm.testing.broker import Broker
from tests.replication.partitions import NOW_MS

LEADER, FOLLOWER = 1, 2
BOTH = (LEADER, FOLLOWER)
T = TypeVar("T")


def topic_id_of(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b".")[:16])


class Replica:
    """The partitions of one broker, which are told their roles by the test as a controller would."""

    def __init__(self, node_id: int, partitions: Partitions) -> None:
        self.node_id = node_id
        self.partitions = partitions
        self._known: dict[str, TopicImage] = {}

    async def take(self, name: str, *states: PartitionImage) -> None:
        """Hear of a topic's partitions, as they are now."""
        topic = TopicImage(name, topic_id_of(name), states, {})
        before = image_of_topics("cluster", LEADER, self._known)
        self._known[name] = topic
        after = image_of_topics("cluster", LEADER, self._known)
        await self.partitions.apply_settings(after, difference(before, after))
        own = {index: state for index, state in enumerate(states) if self.node_id in state.replicas}
        failures = await self.partitions.take_roles({name: (topic.topic_id, own)})
        assert not failures, failures

    def partition(self, name: str, index: int = 0) -> Partition:
        return self.partitions.get(name, index)

    def append(self, name: str, *values: bytes) -> None:
        """One batch."""
        batch = build_batch(number_records([(b"key", value) for value in values], NOW_MS))
        self.partition(name).append(memoryview(batch), parse_header(batch), NOW_MS)

    def content(self, name: str, index: int = 0) -> bytes:
        """All segment files of a partition, one after the other."""
        directory = self.partition(name, index).log.directory
        files = sorted(each for each in os.listdir(directory) if each.endswith(".log"))
        return b"".join((directory / each).read_bytes() for each in files)


class LeaderSide:
    """A broker, whose partitions are told their roles by the test. Everything runs on the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        assert broker.node is not None
        self.broker = broker
        self.port = broker.port
        self.proposals: list[IsrChange] = []
        context = broker.node.partitions._context
        context.propose = lambda partition, change: self.proposals.append(change)
        self._replica = Replica(LEADER, broker.node.partitions)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.broker.run(work)

    def take(self, name: str, *states: PartitionImage) -> None:
        self._run(self._replica.take(name, *states))

    def do(self, work: Callable[[Replica], T]) -> T:
        async def run() -> T:
            return work(self._replica)

        return self._run(run())

    def append(self, name: str, *values: bytes) -> None:
        self.do(lambda replica: replica.append(name, *values))

    def content(self, name: str, index: int = 0) -> bytes:
        return self.do(lambda replica: replica.content(name, index))

    def partition(self, name: str) -> Partition:
        """To look at only."""
        return self._replica.partition(name)


class FollowerSide(Replica):
    """Partitions of broker 2, fetched from the leader."""

    def __init__(self, directory: Path, leader_port: int, *, max_wait_ms: int = 20) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.lanes: set[int] = set()
        """Those that were used."""
        self.log_dirs = LogDirs([directory], now_ms=lambda: NOW_MS, report=lambda line: None)
        config = BrokerConfig({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})
        leader = BrokerImage(LEADER, {"PLAINTEXT": Endpoint("127.0.0.1", leader_port)})
        self.peers = Peers(FOLLOWER, "PLAINTEXT", config, lambda: {LEADER: leader})
        self.fetchers = Fetchers(
            self.connect,
            lambda: FetchSettings(FOLLOWER, 7, max_wait_ms, 1, 10_000_000, 1_000_000, 0.01, 30.0),
            lambda work: self.partitions.run_in_thread(work),
        )
        partitions = Partitions(
            ReplicationContext(FOLLOWER, lambda: NOW_MS),
            self.log_dirs,
            lambda topic: TopicSettings(LogConfig(), 1),
            self.fetchers,
        )
        super().__init__(FOLLOWER, partitions)

    async def connect(self, broker_id: int, lane: int = KEEPING_UP) -> BrokerConnection:
        """The connection that a fetcher uses."""
        self.lanes.add(lane)
        return await self.peers.connect(broker_id, f"{REPLICATION}-{lane}")

    async def stop(self) -> None:
        await self.fetchers.shut_down()
        await self.peers.close()
        self.partitions.shut_down()
        self.log_dirs.close()
