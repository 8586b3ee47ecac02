"""A real TCP proxy between a client and a broker, that hurts what passes on a plan.

    with FaultProxy(plan) as proxy:
        ...start a broker that advertises proxy.address, set proxy.target to where it listens...
        client = klamm.Producer(proxy.bootstrap)

It looks at frames to know which answer is which, and passes on the bytes as they are, unless the plan gives
other ones. The plan is asked about every answer, with the number of its connection and its number within it,
so a plan that looks only at these and at a seed decides the same in every run. Answers of a connection stay
in order: one that is delayed holds up the later ones, as on a real line.

It runs on a loop of its own in a thread; everything public may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_SIZE = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhih")
CONTROL_TIMEOUT_S = 10.0
LARGEST_FRAME_BYTES = 200 * 1024 * 1024
"""Frames of the tests are smaller; a larger one is a proxy that lost its place in the stream."""
SLICE_S = 0.01
"""A slow line gets its share of bytes this often."""


class Answer(NamedTuple):
    """An answer on its way to the client."""

    connection: int
    """Connections are numbered from 0 in the order in which they came."""
    number: int
    """The answers of a connection are numbered from 0."""
    api_key: int
    version: int
    frame: bytes
    """Everything, its size first."""
    client_id: str = ""


@dataclass(frozen=True)
class Verdict:
    """What becomes of an answer: `bytes_` (None: as it is) after `delay_s`, and whether that is the end."""

    bytes_: bytes | None = None
    delay_s: float = 0.0
    cut_after: bool = False


PASS = Verdict()
SWALLOW = Verdict(b"")
CUT = Verdict(b"", cut_after=True)


def cut_in_the_middle(answer: Answer) -> Verdict:
    return Verdict(answer.frame[: len(answer.frame) // 2], cut_after=True)


Plan = Callable[[Answer], Verdict]


def pass_all(answer: Answer) -> Verdict:
    return PASS


class FaultProxy:
    """Listens on a free port of 127.0.0.1, which it keeps, and connects to `target` ("host:port")."""

    def __init__(self, plan: Plan = pass_all, target: str = "") -> None:
        self.plan = plan
        self.target = target
        self.request_bytes_per_second: float | None = None
        """How slow the line to the broker is; None is as fast as it goes."""
        self.port = 0
        self.connection_count = 0
        self.harmed_count = 0
        """Answers that did not pass as they were and at once."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: set[_Link] = set()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    # ---- what a test does to it

    def cut_connections(self) -> None:
        """Reset all connections there are."""
        self._control(self._cut_connections())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Connections are accepted and kept, and nothing passes in either direction."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens, and all connections are reset."""
        self._control(self._stop_listening())
        try:
            yield
        finally:
            self._control(self._listen())

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._control(self._listen())
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._control(self._stop_listening())
        self._control(self._end_links())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        assert not self._thread.is_alive(), "the proxy does not end"
        self._loop.close()

    # ---- on its loop

    def _control(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CONTROL_TIMEOUT_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut_connections()

    async def _cut_connections(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _end_links(self) -> None:
        while self._links:
            await asyncio.gather(*(link.ended.wait() for link in self._links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connection_count
        self.connection_count += 1
        link = _Link(self, number, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.ended.set()

    async def flowing(self) -> None:
        await self._flowing.wait()


class _Link:
    """One client's connection and the one to the broker that belongs to it."""

    def __init__(
        self, proxy: FaultProxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client_reader = reader
        self._client_writer = writer
        self._broker_writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, tuple[int, int]] = {}
        """Correlation id: key and version."""
        self._client_id = ""
        self._pumps: list[asyncio.Task[None]] = []
        self._is_cut = False
        self.ended = asyncio.Event()

    def cut(self) -> None:
        self._is_cut = True
        for pump in self._pumps:
            pump.cancel()
        self._abort()

    def _abort(self) -> None:
        for writer in (self._client_writer, self._broker_writer):
            if writer is not None:
                writer.transport.abort()

    async def run(self) -> None:
        try:
            await self._proxy.flowing()
            host, _, port = self._proxy.target.rpartition(":")
            broker_reader, self._broker_writer = await asyncio.open_connection(host, int(port))
            if self._is_cut:
                return
            self._pumps = [
                asyncio.ensure_future(self._pass_requests(self._client_reader, self._broker_writer)),
                asyncio.ensure_future(self._pass_answers(broker_reader)),
            ]
            # When one side is gone, the other shall know.
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            # No broker there: the client sees its connection end, as behind a load balancer.
            pass
        finally:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            self._abort()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read_frame(reader)
            key, version, correlation_id, size = _REQUEST_HEAD.unpack_from(frame, _SIZE.size)
            self._asked[correlation_id] = (key, version)
            name_at = _SIZE.size + _REQUEST_HEAD.size
            self._client_id = frame[name_at : name_at + max(size, 0)].decode()
            await self._proxy.flowing()
            await self._write_slowly(writer, frame)

    async def _write_slowly(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            rate = self._proxy.request_bytes_per_second
            slice_bytes = len(view) if rate is None else max(1, int(rate * SLICE_S))
            writer.write(view[:slice_bytes])
            view = view[slice_bytes:]
            await writer.drain()
            if rate is not None:
                await asyncio.sleep(SLICE_S)

    async def _pass_answers(self, reader: asyncio.StreamReader) -> None:
        number = 0
        while True:
            frame = await _read_frame(reader)
            (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
            key, version = self._asked.pop(correlation_id, (-1, -1))
            answer = Answer(self._number, number, key, version, frame, self._client_id)
            number += 1
            verdict = self._proxy.plan(answer)
            self._proxy.harmed_count += verdict is not PASS
            await asyncio.sleep(verdict.delay_s)
            await self._proxy.flowing()
            self._client_writer.write(frame if verdict.bytes_ is None else verdict.bytes_)
            await self._client_writer.drain()
            if verdict.cut_after:
                # Closed, not reset: the client shall get the half that was sent.
                self._client_writer.close()
                with contextlib.suppress(OSError):
                    await self._client_writer.wait_closed()
                return


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readexactly(_SIZE.size)
        (size,) = _SIZE.unpack(head)
        assert 0 <= size <= LARGEST_FRAME_BYTES, f"the proxy read a frame of {size} bytes"
        return head + await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the connection ended") from error
