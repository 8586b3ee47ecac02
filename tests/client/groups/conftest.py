"""A broker for the tests of this folder: Klamm, and where a test wants to be sure, Apache Kafka as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from klamm.testing.broker import Broker
from tests.client.topics import make_topic


@pytest.fixture(scope="session")
def klamm_bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


NewTopic = Callable[..., str]


@pytest.fixture
def klamm_topic(klamm_bootstrap: str) -> NewTopic:
    """Makes a topic with a name of its own: klamm_topic(partitions)."""
    return lambda partitions=1: make_topic(klamm_bootstrap, partitions=partitions)
