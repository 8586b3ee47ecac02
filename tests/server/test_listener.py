from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from klamm.config.loading import BrokerConfig
from klamm.server.listener import CannotListen, Server
from tests.server.fakes import FakeDispatcher, eventually, frame


class Listening:
    """A server on a free port, and clients of it."""

    def __init__(self, settings: dict[str, str]) -> None:
        dispatcher: object = FakeDispatcher()
        self.server = Server(dispatcher, lambda: BrokerConfig(settings), asyncio.to_thread)  # type: ignore[arg-type]
        self._clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        """Kept, because a stream that nobody holds is closed."""
        listening = self.server.bind("127.0.0.1", 0)
        self.address = listening.getsockname()
        self.server.start_accepting(listening, "PLAINTEXT")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await asyncio.open_connection(*self.address)
        self._clients.append(streams)
        return streams


@contextlib.asynccontextmanager
async def listening(**settings: str) -> AsyncIterator[Listening]:
    made = Listening({name.replace("_", "."): value for name, value in settings.items()})
    try:
        yield made
    finally:
        made.server.stop_accepting()
        made.server.close_connections()


async def is_hung_up(reader: asyncio.StreamReader) -> bool:
    return await asyncio.wait_for(reader.read(1), 10) == b""


async def test_clients_are_served_and_forgotten() -> None:
    async with listening() as made:
        reader, writer = await made.connect()
        writer.write(frame(1, "e", b"hello"))
        assert (await asyncio.wait_for(reader.readexactly(13), 10))[8:] == b"hello"
        assert len(made.server) == 1
        writer.close()
        await eventually(lambda: len(made.server) == 0)


async def test_no_more_connections_than_allowed() -> None:
    async with listening(max_connections="2") as made:
        first = await made.connect()
        await made.connect()
        await eventually(lambda: len(made.server) == 2)
        refused, _ = await made.connect()
        assert await is_hung_up(refused)
        first[1].close()
        await eventually(lambda: len(made.server) == 1)
        await made.connect()
        await eventually(lambda: len(made.server) == 2)


async def test_no_more_connections_of_one_host_than_allowed() -> None:
    async with listening(max_connections_per_ip="1") as made:
        await made.connect()
        await eventually(lambda: len(made.server) == 1)
        refused, _ = await made.connect()
        assert await is_hung_up(refused)
        assert len(made.server) == 1


async def test_idle_connections_are_ended_and_busy_ones_are_not() -> None:
    async with listening(connections_max_idle_ms="200") as made:
        idle, _ = await made.connect()
        busy, writer = await made.connect()
        writer.write(frame(1, "p"))
        assert await is_hung_up(idle)
        assert len(made.server) == 1
        made.server.dispatcher.parked[1].complete(b"late")  # type: ignore[attr-defined]
        assert (await asyncio.wait_for(busy.readexactly(12), 10))[8:] == b"late"


async def test_closing_ends_every_connection() -> None:
    async with listening() as made:
        readers = [(await made.connect())[0] for _ in range(5)]
        await eventually(lambda: len(made.server) == 5)
        made.server.stop_accepting()
        made.server.close_connections()
        for reader in readers:
            assert await is_hung_up(reader)
        assert len(made.server) == 0


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


async def test_a_port_that_is_taken_is_named(taken_port: int) -> None:
    async with listening() as made:
        with pytest.raises(CannotListen, match=f"port {taken_port} on 127.0.0.1 is taken"):
            made.server.bind("127.0.0.1", taken_port)


async def test_an_address_that_is_not_ours() -> None:
    async with listening() as made:
        with pytest.raises(CannotListen, match=r"cannot listen on 203.0.113.1:0"):
            made.server.bind("203.0.113.1", 0)
