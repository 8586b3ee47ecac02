"""Every test of this folder runs over both faces of the client, against Klamm and against Apache Kafka.

One broker of each kind serves the whole session, so tests use topics and groups of their own. After each test
its clients are closed and must have left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_complains, nothing_leaks
from tests.client.topics import make_topic

NewTopic = Callable[..., str]


@dataclass(frozen=True)
class BrokerUnderTest:
    name: str
    bootstrap: str


@pytest.fixture(scope="session", params=["klamm", "kafka"])
def broker(request: pytest.FixtureRequest) -> BrokerUnderTest:
    # Both outlive the turns of this fixture: a Kafka takes seconds to start.
    fixture = "klamm_bootstrap" if request.param == "klamm" else "apache_kafka"
    return BrokerUnderTest(request.param, request.getfixturevalue(fixture))


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
