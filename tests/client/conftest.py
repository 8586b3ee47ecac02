"""What the suites of the client share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.secured import SecuredKafka
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """An Apache Kafka with TLS and logins: one for the whole session, started when it is first asked for."""
    try:
        kafka = SecuredKafka(tmp_path_factory.mktemp("certificates"))
    except PeerMissing as problem:
        cannot_run(problem)
    with kafka:
        yield kafka
