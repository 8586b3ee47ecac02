"""A small HTTP/1.1 server for pages that programs read: GET and HEAD, bodies that are whole, nothing else.

Written by hand because a broker has no HTTP library, and needs little of one. What comes on a socket is
untrusted: a request has a limited length and time, its body is not read, and whatever is not understood ends
the connection. A client that does not take its answer ends it, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

logger = logging.getLogger("klamm.server")

MAX_HEAD_BYTES = 8 * 1024
"""The request line and the headers. Those of Prometheus and Kubernetes have some hundred bytes."""

MAX_CONNECTIONS = 64
"""Each may hold an answer of some megabytes; a broker has a few scrapers and probes."""

RECEIVE_TIMEOUT_S = 10.0
"""For one request, from its first byte on."""

IDLE_TIMEOUT_S = 150.0
"""Between requests of a connection: more than the usual interval of scrapes, of 15 to 60 s."""

SEND_TIMEOUT_S = 10.0
"""For one piece of an answer."""

SEND_PIECE_BYTES = 64 * 1024

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")


class Answer(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


class BadRequest(Exception):
    """The request is answered with `status`, and the connection closed."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    keeps_alive: bool


Page = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Serves `pages`, which are named by their paths, on a socket that listens."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._on_connection, sock=sock, limit=MAX_HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="klamm-http")
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except Exception:
            logger.exception("an HTTP request failed")
            writer.transport.abort()
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        try:
            head = await _receive_head(reader)
            if head is None:
                return False
            request = parse_head(head)
            answer = await self._answer(request)
        except BadRequest as error:
            await _send(writer, Answer(f"{error}\n".encode(), status=error.status), keeps_alive=False)
            return False
        await _send(writer, answer, keeps_alive=request.keeps_alive, with_body=request.method == "GET")
        return request.keeps_alive

    async def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served here")
        page = self._pages.get(request.path.partition("?")[0])
        if page is None:
            known = ", ".join(self._pages)
            return Answer(
                f"there is no such page: expected one of {known}\n".encode(), status=HTTPStatus.NOT_FOUND
            )
        return await page(request)


async def _receive_head(reader: asyncio.StreamReader) -> bytes | None:
    """A request up to the empty line; None if the client has left, or says nothing for long."""
    try:
        first = await asyncio.wait_for(reader.read(1), IDLE_TIMEOUT_S)
    except TimeoutError:
        return None
    if not first:
        return None
    try:
        rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), RECEIVE_TIMEOUT_S)
    except asyncio.LimitOverrunError:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {MAX_HEAD_BYTES} bytes"
        ) from None
    return first + rest


def parse_head(head: bytes) -> Request:
    """Raises BadRequest."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1 or HTTP/1.0")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header of the request cannot be read")
        headers[header[1].decode().lower()] = header[2].decode("latin-1")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    wish = headers.get("connection", "").lower()
    keeps_alive = not has_body and (wish == "keep-alive" if match[3] == b"0" else wish != "close")
    return Request(match[1].decode(), match[2].decode(), headers, keeps_alive)


async def _send(
    writer: asyncio.StreamWriter, answer: Answer, *, keeps_alive: bool, with_body: bool = True
) -> None:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Connection: {'keep-alive' if keeps_alive else 'close'}\r\n"
    )
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET, HEAD\r\n"
    writer.write(f"{head}\r\n".encode())
    body = memoryview(answer.body if with_body else b"")
    for start in range(0, len(body), SEND_PIECE_BYTES):
        writer.write(body[start : start + SEND_PIECE_BYTES])
        await asyncio.wait_for(writer.drain(), SEND_TIMEOUT_S)
    with suppress(ConnectionError):
        await asyncio.wait_for(writer.drain(), SEND_TIMEOUT_S)
