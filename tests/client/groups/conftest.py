"""Brokers for the tests of this folder: Klamm for sessions, Klamm and Apache Kafka for mixed groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from klamm.testing.broker import Broker
from tests.client.topics import make_topic
from tests.clients.conftest import Clients
from tests.conftest import cannot_run
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing


@pytest.fixture(scope="session")
def klamm_bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


NewTopic = Callable[..., str]


@pytest.fixture
def klamm_topic(klamm_bootstrap: str) -> NewTopic:
    """Makes a topic with a name of its own: klamm_topic(partitions)."""
    return lambda partitions=1: make_topic(klamm_bootstrap, partitions=partitions)


@pytest.fixture(scope="session", params=["klamm", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "klamm":
        yield request.getfixturevalue("klamm_bootstrap")
        return
    try:
        kafka = ApacheKafka()
    except PeerMissing as problem:
        cannot_run(problem)
    with kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def clients(bootstrap: str) -> Iterator[Clients]:
    """The clients of others, each made when it is first asked for."""
    made = Clients(bootstrap)
    yield made
    made.close()
