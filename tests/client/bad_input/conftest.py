"""Every test of this folder runs over both faces, and its clients must have left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.testing.broker import Broker
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_complains, nothing_leaks


@pytest.fixture(scope="session", params=list(FACES))
def session_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with nothing_complains():
        face = FACES[request.param]()
        yield face
        face.close()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """A broker that makes no topics by itself."""
    with Broker({"auto.create.topics.enable": False, "message.max.bytes": 2_000_000}) as broker:
        yield broker.bootstrap


@pytest.fixture
def face(session_face: Face, bootstrap: str) -> Iterator[Face]:
    with nothing_leaks(session_face.loop):
        yield session_face
        session_face.close_clients()
