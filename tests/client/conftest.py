"""What the suites of the client share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.client.network import authentication
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


@pytest.fixture
def early_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew logins after half of their time: the last tenth of a brief one is soon over on a busy machine."""
    monkeypatch.setattr(authentication, "RENEW_FROM", 0.4)
    monkeypatch.setattr(authentication, "RENEW_TO", 0.5)
