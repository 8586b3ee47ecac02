"""The proxy between one broker and a server that is not a broker, and what passes it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from klamm.testing.links import Links
from tests.client.leaks import nothing_complains
from tests.waiting import wait_until

BROKER, OTHER, SERVER = 1, 2, 0
SILENCE_S = 0.2
ANSWER_S = 30.0


class Server:
    """Listens; what connects to it comes through a proxy."""

    def __init__(self, links: Links) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(ANSWER_S)
        port = self._listener.getsockname()[1]
        self._proxies = {each: links.open_from(each, SERVER, "127.0.0.1", port) for each in (BROKER, OTHER)}
        self._sockets: list[socket.socket] = []

    def connect(self, broker_id: int, first: bytes) -> socket.socket:
        """A connection of a broker, which sends something at once, as clients of ZooKeeper do."""
        connection = socket.create_connection(("127.0.0.1", self._proxies[broker_id]), ANSWER_S)
        self._sockets.append(connection)
        connection.sendall(first)
        return connection

    def accept(self, timeout_s: float = ANSWER_S) -> socket.socket:
        self._listener.settimeout(timeout_s)
        connection, _ = self._listener.accept()
        connection.settimeout(ANSWER_S)
        self._sockets.append(connection)
        return connection

    def close(self) -> None:
        for each in (*self._sockets, self._listener):
            each.close()


@pytest.fixture
def links() -> Iterator[Links]:
    links = Links()
    yield links
    links.close()


@pytest.fixture
def server(links: Links) -> Iterator[Server]:
    server = Server(links)
    yield server
    server.close()


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        connection.settimeout(ANSWER_S)


def cut(links: Links) -> None:
    links.cut(BROKER, SERVER)
    links.cut(SERVER, BROKER)


def test_nothing_passes_a_cut_until_it_is_healed(links: Links, server: Server) -> None:
    here, other = server.connect(BROKER, b"hello"), server.connect(OTHER, b"other")
    there = {(one := server.accept()).recv(5): one for _ in range(2)}
    cut(links)
    here.sendall(b"late")
    there[b"hello"].sendall(b"answer")
    other.sendall(b"still")
    assert there[b"other"].recv(5) == b"still"
    assert is_silent(here) and is_silent(there[b"hello"])
    links.heal()
    assert (there[b"hello"].recv(4), here.recv(6)) == (b"late", b"answer")


def test_a_connection_that_was_given_up_on_a_cut_link_does_not_come_about(
    links: Links, server: Server
) -> None:
    cut(links)
    server.connect(BROKER, b"given up").close()
    wait_until(lambda: links.attempt_count(BROKER, SERVER) == 1, "the attempt is counted")
    kept = server.connect(BROKER, b"kept")
    wait_until(lambda: links.attempt_count(BROKER, SERVER) == 2, "the attempt is counted")
    assert is_silent(kept)
    links.heal()
    assert server.accept().recv(8) == b"kept"
    with pytest.raises(TimeoutError):
        server.accept(SILENCE_S)


def test_a_refused_link_resets_connections_until_it_is_healed(links: Links, server: Server) -> None:
    here, other = server.connect(BROKER, b"hello"), server.connect(OTHER, b"other")
    there = {(one := server.accept()).recv(5): one for _ in range(2)}
    links.refuse(BROKER, SERVER)
    assert has_ended(here) and has_ended(there[b"hello"])
    assert has_ended(server.connect(BROKER, b"again"))
    assert links.attempt_count(BROKER, SERVER) == 2
    other.sendall(b"still")
    assert there[b"other"].recv(5) == b"still"
    links.heal()
    server.connect(BROKER, b"healed")
    assert server.accept().recv(6) == b"healed"


def test_closing_says_nothing_of_the_connections_that_it_cuts_off() -> None:
    links = Links()
    server = Server(links)
    with nothing_complains():
        cut(links)
        server.connect(BROKER, b"waits for the link")
        wait_until(lambda: links.attempt_count(BROKER, SERVER) == 1, "the attempt is counted")
        links.close()
    server.close()


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
