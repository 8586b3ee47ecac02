"""Every test of this folder runs over both faces of the client, against Klamm and against Apache Kafka.

One broker of each kind serves the whole session, so tests use topics and groups of their own. After each test
its clients are closed and must have left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from klamm.testing.broker import Broker
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_complains, nothing_leaks
from tests.client.topics import make_topic
from tests.conftest import cannot_run
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing

NewTopic = Callable[..., str]


@dataclass(frozen=True)
class BrokerUnderTest:
    name: str
    bootstrap: str


@pytest.fixture(scope="session", params=["klamm", "kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    if request.param == "klamm":
        with Broker() as klamm_broker:
            yield BrokerUnderTest("klamm", klamm_broker.bootstrap)
    else:
        try:
            kafka = ApacheKafka()
        except PeerMissing as problem:
            cannot_run(problem)
        with kafka:
            yield BrokerUnderTest("kafka", kafka.bootstrap)


@pytest.fixture(scope="session")
def bootstrap(broker: BrokerUnderTest) -> str:
    return broker.bootstrap


@pytest.fixture(scope="session", params=list(FACES))
def session_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with nothing_complains():
        face = FACES[request.param]()
        yield face
        face.close()


@pytest.fixture
def face(session_face: Face, broker: BrokerUnderTest) -> Iterator[Face]:
    with nothing_leaks(session_face.loop):
        yield session_face
        session_face.close_clients()


@pytest.fixture
def new_topic(bootstrap: str) -> NewTopic:
    """new_topic(partitions, {"retention.ms": "1000"}) makes a topic with a name of its own."""

    def make(partitions: int = 1, configs: dict[str, str | int] | None = None) -> str:
        return make_topic(bootstrap, partitions=partitions, configs=configs)

    return make
