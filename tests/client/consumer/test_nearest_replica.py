"""A consumer that says where it stands reads from the replica there (KIP-392), in a real cluster of two.

In the long runs, because two nodes take longer to start than most suites take as a whole.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import klamm
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_leaks
from tests.client.reading import PATIENCE_S, collect, poll_until, values
from tests.client.topics import unique
from tests.conftest import cannot_run
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

FIRST_RACK, SECOND_RACK = "cellar", "attic"
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 20


class Cluster(NamedTuple):
    first: ApacheKafka
    second: ApacheKafka

    @property
    def bootstrap(self) -> str:
        return f"{self.first.bootstrap},{self.second.bootstrap}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    def settings(rack: str) -> dict[str, str]:
        return {"broker.rack": rack, "replica.selector.class": SELECTOR}

    try:
        node = ApacheKafka(properties=settings(FIRST_RACK))
    except PeerMissing as problem:
        cannot_run(problem)
    with node as first, ApacheKafka(properties=settings(SECOND_RACK), joins=first) as second:
        with klamm.Admin(first.bootstrap) as admin:
            wait_until(lambda: len(admin.describe_cluster().brokers) == 2, "both brokers are there")
        yield Cluster(first, second)


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = FACES[request.param]()
    with nothing_leaks(face.loop):
        yield face
        face.close_clients()
    face.close()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with records whose one partition the first node leads and both nodes have."""
    topic = unique("replicated")
    with klamm.Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, assignments={0: [cluster.first.node_id, cluster.second.node_id]})
        with klamm.Producer(cluster.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number)

        def is_led_by_the_first() -> bool:
            partition = admin.describe_topic(topic).partitions[0]
            return partition.leader == cluster.first.node_id and len(partition.in_sync_replicas) == 2

        wait_until(is_led_by_the_first, "the first node leads, and the second is in sync")
    return topic


@pytest.mark.parametrize(("rack", "is_near"), [(SECOND_RACK, True), (FIRST_RACK, False)])
def test_who_is_read_from(face: Face, cluster: Cluster, topic: str, rack: str, is_near: bool) -> None:
    """With the leader paused, only who reads from the other replica reads on."""
    expected = [b"%d" % number for number in range(RECORDS)]
    with face.consumer(cluster.bootstrap, client_rack=rack, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert values(collect(consumer, RECORDS)) == expected
        fetches = consumer.counters()["fetches"]
        # The leader's first answer may have brought all records: the next says where to go on.
        poll_until(consumer, lambda: consumer.counters()["fetches"] > fetches + 1, "more fetches")
        os.kill(cluster.first.pid, signal.SIGSTOP)
        try:
            consumer.seek((topic, 0), 0)
            if is_near:
                assert values(collect(consumer, RECORDS)) == expected
            else:
                assert consumer.poll(timeout=3.0) == []
        finally:
            os.kill(cluster.first.pid, signal.SIGCONT)
        if not is_near:
            assert values(collect(consumer, RECORDS, PATIENCE_S * 2)) == expected
