"""Every test of this folder runs over both faces of the client, against Klamm and against Apache Kafka.

`make test` runs a few of them against Apache Kafka, one for each thing that a client does (ON_KAFKA), and
`make test-long` all of them.

One broker of each kind serves the whole session, so tests use topics and groups of their own. After each test
its clients are closed and must have left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.client.faces import FACES, Face
from tests.client.leaks import nothing_complains, nothing_leaks
from tests.client.topics import make_topic

NewTopic = Callable[..., str]
SUITES = (Path(__file__).parent, Path(__file__).parent.parent / "admin")
"""The folders of tests with these fixtures."""


ON_KAFKA = {
    "test_a_record_comes_back_as_it_was_sent",
    "test_idempotent_unless_told_otherwise",
    "test_codecs",
    "test_iteration",
    "test_poll_arrow",
    "test_send_arrow",
    "test_by_hand",
    "test_two_members_share",
    "test_what_is_drained_is_worked_off_once",
    "test_topics",
    "test_groups_and_their_offsets",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in SUITES and isinstance(item, pytest.Function):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if parameters.get("broker") == "kafka" and item.originalname not in ON_KAFKA:
                item.add_marker(pytest.mark.long)


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
