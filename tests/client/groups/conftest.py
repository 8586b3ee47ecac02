"""Brokers for the tests of this folder: Klamm for sessions, Klamm and Apache Kafka for mixed groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.client.topics import make_topic
from tests.clients.conftest import Clients

NewTopic = Callable[..., str]


@pytest.fixture
def klamm_topic(klamm_bootstrap: str) -> NewTopic:
    """Makes a topic with a name of its own: klamm_topic(partitions)."""
    return lambda partitions=1: make_topic(klamm_bootstrap, partitions=partitions)


@pytest.fixture(scope="session", params=["klamm", pytest.param("kafka", marks=pytest.mark.long)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("klamm_bootstrap" if request.param == "klamm" else "apache_kafka"))


@pytest.fixture(scope="session")
def clients(bootstrap: str) -> Iterator[Clients]:
    """The clients of others, each made when it is first asked for."""
    made = Clients(bootstrap)
    yield made
    made.close()
