"""Runs several nodes of Apache Kafka as one cluster; each is a broker and a controller of one quorum.

    with ApacheKafkaCluster() as cluster:
        print(cluster.bootstrap, cluster.address(1))
        cluster.kill(1)
        cluster.restart(1)

It has the names of `klamm.testing.Cluster`, so that one suite can run over both. A node that dies is noticed
after SESSION_MS, not after Kafka's nine seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.testing.cluster import together
from tests.peers.apache_kafka import START_ATTEMPTS, ApacheKafka, QuorumMember, free_ports, new_id

HEAP_MB = 256
SESSION_MS = 4000

DEFAULTS = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class ApacheKafkaCluster:
    """Nodes 1 to `brokers`. `properties` hold for all; the rack of node n is "rack-n"."""

    def __init__(
        self,
        brokers: int = 3,
        properties: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        advertised_host: str = "127.0.0.1",
    ) -> None:
        self._size = brokers
        self._properties = {**DEFAULTS, **(properties or {})}
        self._listeners = listeners
        self._advertised_host = advertised_host
        self._nodes = self._make_nodes()
        self._running: set[int] = set()

    def _make_nodes(self) -> dict[int, ApacheKafka]:
        ids = range(1, self._size + 1)
        voters = dict(zip(ids, free_ports(self._size), strict=True))
        cluster_id = new_id()
        return {
            node_id: ApacheKafka(
                properties={**self._properties, "broker.rack": f"rack-{node_id}"},
                heap_mb=HEAP_MB,
                listeners=self._listeners,
                advertised_host=self._advertised_host,
                quorum=QuorumMember(node_id, voters, cluster_id),
            )
            for node_id in ids
        }

    def __enter__(self) -> ApacheKafkaCluster:
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start()
                return self
            except BaseException as failure:
                self.__exit__()
                if "Address already in use" not in str(failure) or attempt == START_ATTEMPTS:
                    raise
                self._nodes = self._make_nodes()
        raise AssertionError("not reached")

    def _start(self) -> None:
        first, *others = self._nodes.values()
        first.prepare()
        for other in others:
            other.prepare(formatted_like=first)
        # A node serves when a majority of the controllers is there.
        together(lambda node: node.launch(), self._nodes.values())
        self._running = set(self._nodes)

    def __exit__(self, *exception: object) -> None:
        """End all nodes. Their data is deleted, so nothing need be handed over."""
        self._running = set()
        for node in self._nodes.values():
            node.kill()
            node.stop()

    @property
    def ids(self) -> list[int]:
        return list(self._nodes)

    @property
    def running(self) -> list[int]:
        return sorted(self._running)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node_id) for node_id in self._nodes)

    def address(self, broker_id: int, listener: str = "PLAINTEXT") -> str:
        return f"{self._advertised_host}:{self._nodes[broker_id].port_of(listener)}"

    def kill(self, broker_id: int) -> None:
        self._running.discard(broker_id)
        self._nodes[broker_id].kill()

    def restart(self, broker_id: int) -> None:
        """Start a node that was killed. It serves when this returns."""
        self._nodes[broker_id].launch()
        self._running.add(broker_id)
