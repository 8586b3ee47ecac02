"""The network between the brokers of a test's cluster: a TCP proxy before each broker, which tests cut.

Every broker advertises the address of its proxy to the other brokers. The proxy knows who connects by the
client id in the first request, `broker-<id>`. A cut link is silent, as when packets are lost: connections
stay open, nothing passes, and what was sent arrives when the link is healed. A refused link resets them.

A server that is not a broker, such as a ZooKeeper, gets a proxy for each broker that connects to it. It has a
number, too, which no broker has.

The proxies run on an event loop in a thread of their own. Everything public may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

_FRAME_SIZE = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhih")
"""API key, version, correlation id, and the length of the client id."""
PIECE_BYTES = 256 * 1024
CONTROL_TIMEOUT_S = 10.0
UNKNOWN = -1
"""A connection of somebody who is not a broker."""

Way = tuple[int, int]
"""(sending broker, receiving broker)"""


class Links:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="klamm-links", daemon=True)
        self._thread.start()
        self._servers: dict[Way, asyncio.Server] = {}
        self._targets: dict[Way, tuple[str, int]] = {}
        self._cut: set[Way] = set()
        self._refused: set[Way] = set()
        self._attempts: Counter[Way] = Counter()
        self._healed = asyncio.Event()
        self._connections: set[_Connection] = set()

    def open(self, broker_id: int, host: str, port: int) -> int:
        """Put a proxy before the listener of a broker; returns the proxy's port, which stays the same."""
        return self._open((UNKNOWN, broker_id), host, port)

    def open_from(self, broker_id: int, server_id: int, host: str, port: int) -> int:
        """Put a proxy before a server that is not a broker, for one broker; returns the proxy's port."""
        return self._open((broker_id, server_id), host, port)

    def _open(self, way: Way, host: str, port: int) -> int:
        self._targets[way] = (host, port)
        if way not in self._servers:
            self._servers[way] = self._control(self._listen(way))
        found: int = self._servers[way].sockets[0].getsockname()[1]
        return found

    def cut(self, sender: int, receiver: int) -> None:
        """Let nothing pass from one broker to another, until `heal`."""
        self._control(self._change(self._cut | {(sender, receiver)}, self._refused))

    def refuse(self, sender: int, receiver: int) -> None:
        """Reset the connections between the two, and those that the sender makes until `heal`."""
        self._control(self._change(self._cut, self._refused | {(sender, receiver)}))
        self.break_connections(sender, receiver)

    def heal(self) -> None:
        """Let everything pass again."""
        self._control(self._change(set(), set()))

    def attempt_count(self, sender: int, receiver: int) -> int:
        """How many connections the sender has opened, also on a link that is cut or refused."""
        return self._attempts[sender, receiver]

    def break_connections(self, first: int, second: int) -> None:
        """Reset the connections between two brokers."""
        self._control(self._break({first, second}))

    def close(self) -> None:
        self._control(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        self._loop.close()

    def _control(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_TIMEOUT_S)

    # What follows runs on the loop.

    async def _listen(self, way: Way) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = _Connection(self, way, reader, writer)
            self._connections.add(connection)
            try:
                await connection.run(*self._targets[way])
            except asyncio.CancelledError:
                # By `_close`. In Python 3.11 asyncio logs an error if the task of a connection was cancelled.
                pass
            finally:
                self._connections.discard(connection)

        return await asyncio.start_server(accept, "127.0.0.1", 0)

    async def _change(self, cut: set[Way], refused: set[Way]) -> None:
        self._cut = cut
        self._refused = refused
        self._healed.set()
        self._healed = asyncio.Event()

    async def _break(self, brokers: set[int]) -> None:
        for connection in tuple(self._connections):
            if {connection.source, connection.target} == brokers:
                connection.reset()

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        for connection in tuple(self._connections):
            connection.reset()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def may_connect(self, sender: int, receiver: int) -> None:
        """Wait while the link is cut; raises a ConnectionError if it is refused."""
        self._attempts[sender, receiver] += 1
        await self.may_pass(sender, receiver)
        if (sender, receiver) in self._refused:
            raise ConnectionRefusedError

    async def may_pass(self, sender: int, receiver: int) -> None:
        """Wait while the link is cut in this direction."""
        while (sender, receiver) in self._cut:
            await self._healed.wait()


class _Connection:
    """One connection through a proxy."""

    def __init__(
        self, links: Links, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._links = links
        self._reader = reader
        self._writer = writer
        self._behind: asyncio.StreamWriter | None = None
        self._names_itself = way[0] == UNKNOWN
        """A broker that connects to a broker."""
        self.source, self.target = way

    async def run(self, host: str, port: int) -> None:
        """Pass bytes on in both directions until one side closes."""
        try:
            if self._names_itself:
                first = await self._first_frame()
            else:
                first = await self._reader.read(PIECE_BYTES)
            await self._links.may_connect(self.source, self.target)
            if not self._names_itself and self._reader.at_eof():
                return  # given up on a link that was cut, where it would not have come about
            reader, self._behind = await asyncio.open_connection(host, port)
            self._behind.write(first)
            there = asyncio.ensure_future(self._pass_on(self._reader, self._behind, self.source, self.target))
            back = asyncio.ensure_future(self._pass_on(reader, self._writer, self.target, self.source))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except (OSError, EOFError):
            pass
        finally:
            self.reset()

    async def _first_frame(self) -> bytes:
        """The first request whole; its client id says which broker connects."""
        size = await self._reader.readexactly(_FRAME_SIZE.size)
        frame = await self._reader.readexactly(_FRAME_SIZE.unpack(size)[0])
        *_, length = _REQUEST_HEAD.unpack_from(frame)
        client_id = frame[_REQUEST_HEAD.size : _REQUEST_HEAD.size + max(length, 0)].decode(errors="replace")
        kind, _, number = client_id.partition("-")
        self.source = int(number) if kind == "broker" and number.isdigit() else UNKNOWN
        return size + frame

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: int, receiver: int
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._links.may_pass(sender, receiver)
                writer.write(piece)
                await writer.drain()
        # The end of a connection is a packet, too: it does not pass a cut link.
        await self._links.may_pass(sender, receiver)

    def reset(self) -> None:
        for writer in (self._writer, self._behind):
            if writer is not None:
                writer.transport.abort()
