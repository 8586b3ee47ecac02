"""Listeners that are added, moved and taken away while brokers run."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

import pytest

import klamm
from klamm.client.errors import ClientError
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.testing.broker import Broker
from klamm.testing.cluster import Cluster
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until

HOST = "127.0.0.1"
WITH_EXTRA = "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def set_listeners(bootstrap: str, listeners: str | None, *, broker_id: int = 1) -> None:
    """Set the listeners of a broker, or, with None, return to those that it was started with."""
    with klamm.Admin(bootstrap) as admin:
        resource = klamm.ConfigResource.broker(broker_id)
        if listeners is None:
            admin.alter_config(resource, delete=["listeners", "listener.security.protocol.map"])
        else:
            settings = {"listeners": listeners, "listener.security.protocol.map": WITH_EXTRA}
            admin.alter_config(resource, set=settings)


def brokers_at(bootstrap: str) -> dict[int, tuple[str, int]]:
    """The brokers that a client of this address is told."""
    with WireConnection(bootstrap) as connection:
        answer = connection.call(MetadataRequest(topics=[]))
    return {each.node_id: (each.host, each.port) for each in answer.brokers}


def on_loop(broker: Broker, work: Callable[[], None]) -> None:
    async def do() -> None:
        work()

    broker.run(do())


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_listener_that_is_added_serves_clients_and_is_told_to_them() -> None:
    port = free_port()
    with Broker() as broker:
        set_listeners(broker.bootstrap, f"PLAINTEXT://{HOST}:0,EXTRA://{HOST}:{port}")
        wait_until(lambda: brokers_at(f"{HOST}:{port}") == {1: (HOST, port)}, "the new listener is told")
        assert brokers_at(broker.bootstrap) == {1: (HOST, broker.port)}, "the other one stays"
        with klamm.Producer(f"{HOST}:{port}") as producer:
            assert producer.send("t", b"x").result(30).offset == 0
        broker.restart()
        assert brokers_at(f"{HOST}:{port}") == {1: (HOST, port)}, "also after a restart"


def test_a_listener_that_is_taken_away_is_closed_with_its_connections() -> None:
    port = free_port()
    with Broker() as broker:
        set_listeners(broker.bootstrap, f"PLAINTEXT://{HOST}:0,EXTRA://{HOST}:{port}")
        with socket.create_connection((HOST, port), timeout=30) as client:
            set_listeners(f"{HOST}:{port}", None)  # answered on the listener that it closes
            assert refuses_connections(port)
            assert client.recv(1) == b"", "the connection is closed"
        assert brokers_at(broker.bootstrap) == {1: (HOST, broker.port)}


def test_a_listener_moves_to_another_port() -> None:
    port = free_port()
    with Broker() as broker:
        old = broker.port
        set_listeners(broker.bootstrap, f"PLAINTEXT://{HOST}:{port}")
        wait_until(lambda: brokers_at(f"{HOST}:{port}") == {1: (HOST, port)}, "the new address is told")
        assert refuses_connections(old)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_a_change_to_an_address_that_cannot_be_opened_is_refused(taken_port: int) -> None:
    with Broker() as broker:
        with pytest.raises(ClientError, match="is taken by another process"):
            set_listeners(broker.bootstrap, f"PLAINTEXT://{HOST}:{taken_port}")
        with pytest.raises(ClientError, match=r"cannot listen on elsewhere\.invalid:1: "):
            set_listeners(broker.bootstrap, "PLAINTEXT://elsewhere.invalid:1")
        assert brokers_at(broker.bootstrap) == {1: (HOST, broker.port)}
        broker.restart()
        assert brokers_at(broker.bootstrap) == {1: (HOST, broker.port)}, "nothing was stored"


def test_a_listener_moves_to_another_host_on_its_port() -> None:
    with Broker() as broker:
        set_listeners(broker.bootstrap, f"PLAINTEXT://127.0.0.2:{broker.port}")
        moved = f"127.0.0.2:{broker.port}"
        wait_until(lambda: brokers_at(moved) == {1: ("127.0.0.2", broker.port)}, "the new host is told")
        assert refuses_connections(broker.port)


def test_a_listener_that_cannot_be_opened_after_all_keeps_its_port(
    taken_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(brokers=2) as cluster:
        other = next(each for each in cluster.ids if not is_controller(cluster, each))
        before = brokers_at(cluster.address(other))
        node = cluster.broker(other).node
        assert node is not None
        moved = [
            f"{each.name}://{HOST}:{taken_port}" if each.name == "PLAINTEXT" else str(each)
            for each in node.config.listeners
        ]
        with caplog.at_level(logging.ERROR, "klamm.node"):
            set_listeners(cluster.address(other), ",".join(moved), broker_id=other)
            wait_until(lambda: "is taken by another process" in caplog.text, "the broker says so")
        assert brokers_at(cluster.address(other)) == before


@pytest.mark.parametrize(
    ("listeners", "why"),
    [
        ("", "at least one"),
        ("nonsense", "NAME://host:port"),
        ("OTHER://127.0.0.1:0", "no protocol"),
        ("PLAINTEXT://0.0.0.0:9", "every interface"),
    ],
)
def test_listeners_that_cannot_be_served_are_refused(listeners: str, why: str) -> None:
    with Broker() as broker:
        with pytest.raises(ClientError, match=why):
            set_listeners(broker.bootstrap, listeners)
        assert brokers_at(broker.bootstrap) == {1: (HOST, broker.port)}


def with_extra(cluster: Cluster, broker_id: int, port: int) -> str:
    """The listeners of a broker of a cluster, and one more."""
    node = cluster.broker(broker_id).node
    assert node is not None
    own = ",".join(map(str, node.config.listeners))
    return f"{own},EXTRA://{HOST}:{port}"


def epochs_of(cluster: Cluster) -> list[int | None]:
    nodes = [cluster.broker(each).node for each in cluster.ids]
    return [None if node is None else node.broker_epoch for node in nodes]


def is_controller(cluster: Cluster, broker_id: int) -> bool:
    node = cluster.broker(broker_id).node
    return node is not None and node.cluster.is_controller


def test_every_broker_of_a_cluster_tells_the_new_address_of_another() -> None:
    ports = {1: free_port(), 2: free_port()}
    with Cluster(brokers=2) as cluster:
        before = brokers_at(cluster.address(1))
        epochs = epochs_of(cluster)
        for broker_id, port in ports.items():
            set_listeners(cluster.address(1), with_extra(cluster, broker_id, port), broker_id=broker_id)
        expected = {broker_id: (HOST, port) for broker_id, port in ports.items()}
        for port in ports.values():
            wait_until(lambda at=port: brokers_at(f"{HOST}:{at}") == expected, "both brokers know both")
        assert brokers_at(cluster.address(2)) == before, "clients of other listeners are told what they were"
        assert epochs_of(cluster) == epochs, "no broker was taken for one that has restarted"
        cluster.kill(1)
        cluster.restart(1)
        wait_until(lambda: brokers_at(f"{HOST}:{ports[2]}") == expected, "it registers with all listeners")
        with klamm.Producer(f"{HOST}:{ports[1]}", acks="all") as producer:
            producer.send("t", b"x").result(30)


def test_the_listener_for_brokers_cannot_be_moved_or_taken_away() -> None:
    with Cluster(brokers=2) as cluster:
        controller = next(each for each in cluster.ids if is_controller(cluster, each))
        for listeners in (f"PLAINTEXT://{HOST}:0,BROKERS://{HOST}:1", f"PLAINTEXT://{HOST}:0"):
            with pytest.raises(ClientError, match="BROKERS"):
                set_listeners(cluster.address(controller), listeners, broker_id=controller)


def test_listeners_that_another_broker_cannot_serve_are_logged_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(brokers=2) as cluster:
        before = brokers_at(cluster.address(1))
        other = next(each for each in cluster.ids if not is_controller(cluster, each))
        with caplog.at_level(logging.ERROR, "klamm.cluster"):
            set_listeners(cluster.address(other), f"NOBODY://{HOST}:0", broker_id=other)
            wait_until(lambda: "do not count" in caplog.text, "the broker has logged it")
        assert brokers_at(cluster.address(other)) == before


def test_clients_are_turned_away_and_welcomed_again_and_brokers_are_served_all_the_while() -> None:
    with Cluster(brokers=2) as cluster:
        with klamm.Admin(cluster.bootstrap) as admin:
            controller = admin.describe_cluster().controller_id
        assert controller is not None
        away = cluster.broker(3 - controller)
        node = away.node
        assert node is not None

        def is_served() -> bool:
            try:
                brokers_at(away.bootstrap)
            except OSError:
                return False
            return True

        with WireConnection(away.bootstrap) as connection:
            connection.call(MetadataRequest(topics=[]))
            on_loop(away, node._listeners.turn_clients_away)
            with pytest.raises(OSError):
                connection.call(MetadataRequest(topics=[]))
        assert not is_served()
        with klamm.Admin(cluster.address(controller)) as admin:
            admin.create_topic("made-meanwhile", 1, 2)
        wait_until(lambda: "made-meanwhile" in node.cluster.image.topics, "the broker hears of the topic")
        on_loop(away, node._listeners.welcome_clients)
        assert is_served()
