"""The clients of the suites, each made once when the first test asks for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.clients.aio import AioClient
from tests.clients.confluent import ConfluentClient
from tests.clients.contract import Client, Member
from tests.clients.kafka_python import KafkaPythonClient
from tests.clients.kcat import KcatClient
from tests.clients.klamm_faces import KlammAioClient, KlammPlainClient
from tests.clients.remote import JavaClient, KafkaJsClient
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

CLIENTS: dict[str, Callable[[str], Client]] = {
    kind.name: kind
    for kind in (
        ConfluentClient,
        KafkaPythonClient,
        AioClient,
        KcatClient,
        KafkaJsClient,
        JavaClient,
        KlammPlainClient,
        KlammAioClient,
    )
}


class Clients:
    """Hands out the clients by name."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._made: dict[str, Client] = {}

    def get(self, name: str) -> Client:
        if name not in self._made:
            try:
                self._made[name] = CLIENTS[name](self._bootstrap)
            except PeerMissing as problem:
                cannot_run(problem)
        return self._made[name]

    def close(self) -> None:
        for client in self._made.values():
            client.close()


@pytest.fixture(scope="session")
def clients(bootstrap: str) -> Iterator[Clients]:
    made = Clients(bootstrap)
    yield made
    made.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, clients: Clients) -> Client:
    """The client a test is about; see tests.clients.selection.for_clients."""
    return clients.get(request.param)


NewTopic = Callable[..., str]


@pytest.fixture
def new_topic(clients: Clients) -> NewTopic:
    """Makes a topic with a name of its own: new_topic(partitions, {"retention.ms": "1000"})."""
    administrator = clients.get(ConfluentClient.name)
    assert isinstance(administrator, ConfluentClient)

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = unique("topic")
        administrator.create_topic(name, partitions, config)
        # Apache Kafka makes a topic known a moment after it said that it has made it.
        wait_until(lambda: name in administrator.list_topics(), f"{name} is known")
        return name

    return make


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


class Group:
    """A group of one test: members join by a short name and are gone when the test is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: list[Member] = []
        self._numbers = itertools.count(1)

    def join(
        self,
        client: Client,
        topic: str,
        *,
        name: str | None = None,
        strategy: str | None = None,
        instance_id: str | None = None,
    ) -> Member:
        member = client.join(
            self.name,
            topic,
            client_id=name or f"member-{next(self._numbers)}",
            strategy=strategy or client.strategies[0],
            instance_id=instance_id,
        )
        self._members.append(member)
        return member

    def disband(self) -> None:
        for member in self._members:
            member.leave()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(unique("group"))
    yield made
    made.disband()
