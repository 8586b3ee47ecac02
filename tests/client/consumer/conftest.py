"""Both faces of the consumer against one Klamm broker in this process; nothing may be left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_leaks


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.cleaner.backoff.ms": 50}) as broker:
        yield broker


@pytest.fixture(scope="module", params=list(FACES))
def module_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = FACES[request.param]()
    yield face
    face.close()


@pytest.fixture
def face(module_face: Face, broker: Broker) -> Iterator[Face]:
    with nothing_leaks(module_face.loop):
        yield module_face
        module_face.close_clients()


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireConnection]:
    """A bare connection, for what happens behind the consumer's back."""
    with WireConnection(broker.bootstrap, client_id="preparer") as connection:
        yield connection
