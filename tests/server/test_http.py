"""The small HTTP server on a real socket: what it answers, and what cannot hurt it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

import pytest

from klamm.server import http
from klamm.server.http import Answer, BadRequest, HttpServer, Request, parse_head
from tests.waiting import until

BIG = b"0123456789abcdef" * 200_000


class Served:
    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.server = HttpServer({"/small": self._small, "/big": self._big, "/broken": self._broken})
        self.port = 0

    async def start(self) -> None:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        await self.server.start(sock)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, data: bytes) -> bytes:
        """All that comes back until the server hangs up."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            async with asyncio.timeout(20):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def _small(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(b"fine\n")

    async def _big(self, request: Request) -> Answer:
        return Answer(BIG)

    async def _broken(self, request: Request) -> Answer:
        raise RuntimeError("as told")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.server.stop()


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer.split()[1])


async def test_get_and_head(served: Served) -> None:
    got = await served.exchange(b"GET /small?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    assert status_of(got) == 200 and body == b"fine\n" and b"Content-Length: 5" in head
    only_head = await served.exchange(b"HEAD /small HTTP/1.0\r\n\r\n")
    assert only_head == head + b"\r\n\r\n"


async def test_a_connection_serves_many_requests_also_pipelined(served: Served) -> None:
    once, last = b"GET /small HTTP/1.1\r\n\r\n", b"GET /small HTTP/1.1\r\nConnection: close\r\n\r\n"
    answer = await served.exchange(once * 5 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"fine\n") == 6


async def test_a_large_answer_arrives_whole(served: Served) -> None:
    answer = await served.exchange(b"GET /big HTTP/1.0\r\n\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == BIG


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n", 404),
        (b"POST /small HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET http://elsewhere/small HTTP/1.1\r\n\r\n", 400),
        (b"GET /small HTTP/2.0\r\n\r\n", 400),
        (b"GET /small HTTP/1.1\r\n no: name\r\n\r\n", 400),
        (b"GET /small HTTP/1.1\r\nx: \0\r\n\r\n", 400),
        (b"GET /small HTTP/1.1\nHost: a\n\n" + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 2 * http.MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /small HTTP/1.1\r\n" + b"a: b\r\n" * http.MAX_HEAD_BYTES, 431),
    ],
)
async def test_what_is_refused(served: Served, data: bytes, status: int) -> None:
    assert status_of(await served.exchange(data)) == status
    assert served.asked == []


async def test_a_request_with_a_body_ends_its_connection(served: Served) -> None:
    """The body would be taken for the next request."""
    smuggled = b"GET /broken HTTP/1.1\r\n\r\n"
    data = b"GET /small HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(smuggled), smuggled)
    assert (await served.exchange(data)).count(b"HTTP/1.1") == 1


async def test_a_page_that_fails_hurts_nobody_else(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert await served.exchange(b"GET /broken HTTP/1.1\r\n\r\n") == b""
    assert "an HTTP request failed" in caplog.text
    assert status_of(await served.exchange(b"GET /small HTTP/1.0\r\n\r\n")) == 200


async def test_garbage_hurts_nobody(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    valid = b"GET /small HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"
    for _ in range(100):
        data = bytearray(valid if chance.random() < 0.7 else chance.randbytes(200))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        reader, writer = await served.connect()
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
    assert status_of(await served.exchange(b"GET /small HTTP/1.0\r\n\r\n")) == 200, seed
    assert not caplog.records, seed


async def test_clients_that_say_nothing_or_take_nothing_are_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECEIVE_TIMEOUT_S", "IDLE_TIMEOUT_S", "SEND_TIMEOUT_S"):
        monkeypatch.setattr(http, name, 0.1)
    for data in (b"", b"GET /small HTTP/1.1\r\nHos"):
        assert await served.exchange(data) == b""
    reader, writer = await served.connect()
    writer.write(b"GET /big HTTP/1.1\r\n\r\n" * 20)
    await until_left(served)
    writer.close()
    del reader


async def test_there_are_so_many_connections_and_no_more(served: Served) -> None:
    others = [await served.connect() for _ in range(http.MAX_CONNECTIONS)]
    for _, writer in others:
        writer.write(b"GET /small HTTP/1.1\r\n\r\n")
    for reader, _ in others:
        await reader.readuntil(b"fine\n")
    assert await served.exchange(b"GET /small HTTP/1.0\r\n\r\n") == b""
    for _, writer in others:
        writer.close()
    await until_left(served)
    assert status_of(await served.exchange(b"GET /small HTTP/1.0\r\n\r\n")) == 200


async def until_left(served: Served) -> None:
    await until(lambda: not served.server.connection_count, "all have left")


def test_names_of_headers_are_read_in_any_case() -> None:
    request = parse_head(b"GET /x HTTP/1.1\r\nACCEPT:  application/json \r\n\r\n")
    assert request.headers == {"accept": "application/json"} and request.keeps_alive
    with pytest.raises(BadRequest):
        parse_head(b"\r\n\r\n")
