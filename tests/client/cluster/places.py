"""The clusters that this folder runs over, behind one way to ask and to disturb them.

Three brokers each: Klamm's, Apache Kafka's, and Apache Kafka's once more over TLS. Broker n is in "rack-n".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import klamm
from klamm.client.results import TopicPartition
from klamm.groups.coordinator import abs_java_hash
from klamm.testing import Cluster
from tests.client.topics import unique
from tests.peers.apache_kafka_cluster import ApacheKafkaCluster
from tests.waiting import wait_until

BROKERS = (1, 2, 3)
OFFSETS_TOPIC = "__consumer_offsets"
FAILOVER_PATIENCE_S = 90.0
"""For what waits until a node of Apache Kafka is taken for dead, or is up again, on a busy machine."""


@dataclass
class Place:
    """A cluster, and how a client is told to use it."""

    name: str
    cluster: Cluster | ApacheKafkaCluster
    addresses: Mapping[int, str]
    security: Mapping[str, Any] = field(default_factory=dict)
    _admin: klamm.Admin | None = None

    def at(self, *brokers: int) -> dict[str, Any]:
        """Options of a client that knows only these brokers; without any, all of them."""
        return {
            "bootstrap": [self.addresses[broker] for broker in brokers or BROKERS],
            **self.security,
        }

    @property
    def admin(self) -> klamm.Admin:
        """For what a test prepares and checks."""
        if self._admin is None:
            self._admin = klamm.Admin(**self.at())
        return self._admin

    def close_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # ---- looking

    def leader(self, partition: TopicPartition) -> int | None:
        return self.admin.describe_topic(partition.topic).partitions[partition.partition].leader

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self.admin.describe_topic(partition.topic).partitions[partition.partition].leader_epoch

    def wait_for_replicas(self, *topics: str) -> None:
        """Wait until all replicas of these topics are in sync."""

        def are_in_sync() -> bool:
            try:
                described = self.admin.describe_topics(topics).values()
            except klamm.BatchFailed:  # by a broker that has not heard of a new topic yet
                return False
            return all(
                set(one.in_sync_replicas) == set(one.replicas) and one.leader is not None
                for topic in described
                for one in topic.partitions
            )

        wait_until(are_in_sync, "all replicas are in sync", FAILOVER_PATIENCE_S)

    def offsets_partition(self, group: str) -> TopicPartition:
        """The partition with the offsets of a group. Its leader coordinates the group."""
        self.admin.list_group_offsets(group)  # the topic is made for whoever first looks for a coordinator
        count = len(self.admin.describe_topic(OFFSETS_TOPIC).partitions)
        return TopicPartition(OFFSETS_TOPIC, abs_java_hash(group) % count)

    # ---- changing

    def new_topic(self, *replicas: list[int], **configs: str | int) -> str:
        """A topic with a partition for each list of brokers; the first of a list leads."""
        topic = unique("cluster")
        self.admin.create_topic(
            topic,
            assignments=dict(enumerate(replicas)),
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        self.wait_for_replicas(topic)
        return topic

    def move_leader(self, partition: TopicPartition, broker: int) -> None:
        """Make `broker`, which has a replica, the preferred replica, and elect it."""
        replicas = self.admin.describe_topic(partition.topic).partitions[partition.partition].replicas
        order = [broker, *(each for each in replicas if each != broker)]
        self.admin.alter_partition_reassignments({partition: order})
        self.admin.elect_leaders([partition])
        wait_until(lambda: self.leader(partition) == broker, f"broker {broker} leads {partition}")

    def restart(self, broker: int, *topics: str) -> None:
        """Start a broker that was killed, and wait until it has caught up."""
        self.cluster.restart(broker)
        wait_until(
            lambda: len(self.admin.describe_cluster().brokers) == len(BROKERS),
            "all brokers are there",
            FAILOVER_PATIENCE_S,
        )
        has_offsets = OFFSETS_TOPIC in self.admin.list_topics(include_internal=True)
        self.wait_for_replicas(*topics, *([OFFSETS_TOPIC] if has_offsets else []))

    @contextmanager
    def killed(self, broker: int, *topics: str) -> Iterator[None]:
        """Without a broker; at the end it is back, and has caught up in these topics."""
        self.cluster.kill(broker)
        try:
            yield
        finally:
            self.restart(broker, *topics)

    @contextmanager
    def held_back(self, leader: int, follower: int, topic: str) -> Iterator[None]:
        """`follower` fetches nothing, or next to nothing, of `topic` from `leader`."""
        if isinstance(self.cluster, Cluster):
            self.cluster.partition(leader, follower)
            try:
                yield
            finally:
                self.cluster.heal()
            return
        rate, of_topic = klamm.ConfigResource.broker(leader), klamm.ConfigResource.topic(topic)
        self.admin.alter_configs(
            {
                rate: klamm.ConfigChange(set={"leader.replication.throttled.rate": 1}),
                of_topic: klamm.ConfigChange(set={"leader.replication.throttled.replicas": "*"}),
            }
        )
        try:
            yield
        finally:
            self.admin.alter_configs(
                {
                    rate: klamm.ConfigChange(delete=["leader.replication.throttled.rate"]),
                    of_topic: klamm.ConfigChange(delete=["leader.replication.throttled.replicas"]),
                }
            )
