"""A dispatcher that does what single letters tell it to, and a connection to it over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from klamm.apis.registry import LATER, NO_RESPONSE, CloseConnection, ConnectionHandle
from klamm.apis.steps import Steps
from klamm.metrics.request_times import TimesByApi
from klamm.model.reply import Reply
from klamm.protocol.errors import MalformedMessage
from klamm.server.connection import Connection
from klamm.server.dispatch import LargeRequest
from klamm.server.joint_sending import JointSending
from klamm.server.receiving import SHARED_BUFFER_BYTES, LargeBuffers
from klamm.server.replies import ReplyLine
from klamm.server.turns import Turns
from klamm.server.unsent import UnsentAnswers
from klamm.server.work import WorkQueue
from klamm.storage.segments.segment import FileSlice

MAX_REQUEST_BYTES = 10_000_000


class FakeRoute(NamedTuple):
    key: int = 0
    version: int = 0

    def frame(self, correlation_id: int, response: object) -> list[bytes | FileSlice]:
        assert isinstance(response, bytes | FileSlice), "cannot be encoded"
        return [struct.pack(">ii", len(response) + 4, correlation_id), response]

    def frame_in_steps(
        self, correlation_id: int, response: object, count_bytes: Callable[[int], None]
    ) -> Steps[list[bytes | FileSlice]]:
        chunks = self.frame(correlation_id, response)
        count_bytes(sum(map(len, chunks)))
        yield
        return chunks


class FakeDispatcher:
    """Frames are a correlation id, a letter and more bytes. The letter says what kind of handler answers:

    e echoes, f answers with `file_slice`, p parks, s is serial, n answers nothing, z answers as many bytes as
    the number that follows, m is malformed, c closes, x fails, u has an answer that cannot be encoded, g
    answers in steps and d parks after steps. L is a large request, which echoes after `step_count` steps, and
    P is one that parks after them. C is a large request whose steps complete its reply themselves.
    """

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.parked: dict[int, Reply] = {}
        self.dropped: list[int] = []
        """The parked requests whose connection went away."""
        self.serial_gates: dict[int, asyncio.Event] = {}
        self.serial_done: list[int] = []
        self.file_slice: FileSlice | None = None
        self.step_count = 3
        self.steps_done = 0

    def start(self, frame: memoryview, connection: ConnectionHandle, line: ReplyLine) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        letter, rest = bytes(frame[4:5]), bytes(frame[5:])
        if letter in (b"L", b"P", b"C"):
            raise LargeRequest
        self.handled.append(letter + rest[:20])
        reply = line.open(FakeRoute(), correlation_id)
        reply.complete(self._answer(letter, rest, correlation_id, reply))

    def start_in_steps(self, frame: memoryview, connection: ConnectionHandle, line: ReplyLine) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        reply = line.open(FakeRoute(), correlation_id)

        def steps() -> Steps[Any]:
            for _ in range(self.step_count):
                yield
            self.handled.append(bytes(frame[4:24]))
            if frame[4:5] == b"C":
                reply.complete(bytes(frame[5:]))
                yield
                return LATER
            return bytes(frame[5:]) if frame[4:5] == b"L" else self._park(correlation_id, reply)

        reply.do_steps(steps(), is_large=True)

    def _park(self, correlation_id: int, reply: Reply) -> Any:
        self.parked[correlation_id] = reply
        reply.on_drop = lambda: self.dropped.append(correlation_id)
        return LATER

    def _in_steps(self, result: Any) -> Steps[Any]:
        for number in range(self.step_count):
            self.steps_done = number + 1
            yield
        return result

    def _answer(self, letter: bytes, rest: bytes, correlation_id: int, reply: Reply) -> Any:
        if letter == b"e":
            return rest
        if letter == b"g":
            return self._in_steps(rest)
        if letter == b"d":
            return self._in_steps(self._park(correlation_id, reply))
        if letter == b"f":
            return self.file_slice
        if letter == b"p":
            return self._park(correlation_id, reply)
        if letter == b"s":
            self.serial_gates[correlation_id] = asyncio.Event()
            return self._serve_serially(correlation_id, rest)
        if letter == b"n":
            return NO_RESPONSE
        if letter == b"z":
            return bytes(int(rest))
        if letter == b"m":
            raise MalformedMessage("as told")
        if letter == b"c":
            raise CloseConnection("as told")
        if letter == b"u":
            return object()
        raise RuntimeError("as told")

    async def _serve_serially(self, correlation_id: int, rest: bytes) -> bytes:
        await self.serial_gates[correlation_id].wait()
        self.serial_done.append(correlation_id)
        return rest


class FakeServer:
    """What a connection needs of its server, and the client's end of the socket."""

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.dispatcher: Any = FakeDispatcher()
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.large_buffers = LargeBuffers(limit_bytes)
        self.unsent = UnsentAnswers()
        self.work = WorkQueue(self.unsent)
        self.turns = Turns()
        self.joint_sending = JointSending()
        self.request_times = TimesByApi()
        self.max_request_bytes = MAX_REQUEST_BYTES
        self.forgotten: list[Connection] = []
        self.disk_gate = asyncio.Event()
        """Set by a test when reads from the disk may finish."""
        self.disk_reads = 0
        theirs, self.client = socket.socketpair()
        for sock in (theirs, self.client):
            sock.setblocking(False)
        self.connection = Connection(self, theirs, "test", "PLAINTEXT")

    def forget(self, connection: Connection) -> None:
        self.forgotten.append(connection)

    async def run_in_thread(self, work: Callable[[], None]) -> None:
        self.disk_reads += 1
        await self.disk_gate.wait()
        await asyncio.to_thread(work)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def receive(self) -> tuple[int, bytes]:
        """Correlation id and body of the next response."""
        size, correlation_id = struct.unpack(">ii", await self._receive_exactly(8))
        return correlation_id, await self._receive_exactly(size - 4)

    async def receive_available(self) -> bytes:
        """The bytes that arrive until none come for some iterations of the loop."""
        data = bytearray()
        idle_iterations = 0
        while idle_iterations < 20:
            try:
                piece = self.client.recv(1 << 20)
            except BlockingIOError:
                piece = b""
            idle_iterations = 0 if piece else idle_iterations + 1
            data += piece
            await asyncio.sleep(0)
        return bytes(data)

    async def is_hung_up(self) -> bool:
        """Waits for the next thing the broker does; true when that is closing the connection."""
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.client, 1), 10) == b""
        except ConnectionError:
            return True

    async def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(self.client, size - len(data)), 10
            )
            if not piece:
                raise ConnectionError("the connection was closed")
            data += piece
        return bytes(data)

    async def until_handled(self, count: int) -> None:
        await eventually(lambda: len(self.dispatcher.handled) >= count)

    async def let_it_read(self) -> None:
        """Give the connection many iterations of the loop to do what it should not do."""
        for _ in range(50):
            await asyncio.sleep(0)


async def eventually(condition: Callable[[], object]) -> None:
    """Run the loop until the condition holds."""
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def fake_server(limit_bytes: int = 1 << 30) -> AsyncIterator[FakeServer]:
    server = FakeServer(limit_bytes)
    try:
        yield server
    finally:
        server.connection.close()
        server.client.close()


def frame(correlation_id: int, letter: str, rest: bytes = b"") -> bytes:
    body = struct.pack(">i", correlation_id) + letter.encode() + rest
    return struct.pack(">i", len(body)) + body
