"""A topic of its own for each test, on one broker."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm.testing
from tests.ingest.topics import Tails, make_topic


@pytest.fixture
def topic(klamm_session: klamm.testing.Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]
    return make_topic(klamm_session.bootstrap, name)


@pytest.fixture
def tails(klamm_session: klamm.testing.Broker, topic: str, tmp_path: Path) -> Tails:
    return Tails(klamm_session.bootstrap, topic, tmp_path)
