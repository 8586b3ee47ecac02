"""The far end of the machine's own limits: `python -m bench.machine_server KIND ...`, one process a server.

It prints its port and serves until its standard input closes. Kinds:
- ping-pong REQUEST_SIZE ANSWER_HEX: a uvloop server that counts bytes and answers as a broker's loop would
- sink [FILE]: takes a stream, appends it to the file if there is one, answers the number of bytes at its end
- sendfile FILE REQUEST_SIZE ANSWER_SIZE: answers each request with the next part of a file
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import threading
from typing import cast

import uvloop

RECEIVE_BUFFER_BYTES = 256 * 1024


class PingPong(asyncio.BufferedProtocol):
    """The least a uvloop server can do: count the bytes that came, write the answers they are worth."""

    def __init__(self, request_size: int, answer: bytes) -> None:
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._request_size = request_size
        self._answer = answer
        self._pending = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not derive from it

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, received: int) -> None:
        count, self._pending = divmod(self._pending + received, self._request_size)
        if count:
            self._transport.write(self._answer * count)


async def serve_ping_pong(request_size: int, answer: bytes) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PingPong(request_size, answer), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def sink(connection: socket.socket, path: str | None) -> None:
    """A receive, an append, and nothing else: what a broker that only copies could do with the stream."""
    buffer, total = memoryview(bytearray(RECEIVE_BUFFER_BYTES)), 0
    target = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o644) if path else None
    while received := connection.recv_into(buffer):
        if target is not None:
            written = 0
            while written < received:
                written += os.write(target, buffer[written:received])
        total += received
    connection.sendall(struct.pack(">q", total))
    if target is not None:
        os.close(target)


def send_file(connection: socket.socket, path: str, request_size: int, answer_size: int) -> None:
    source, position = os.open(path, os.O_RDONLY), 0
    size = os.fstat(source).st_size
    try:
        while len(connection.recv(request_size, socket.MSG_WAITALL)) == request_size:
            if position + answer_size > size:
                position = 0
            end = position + answer_size
            while position < end:
                position += os.sendfile(connection.fileno(), source, position, end - position)
    finally:
        os.close(source)


def serve_streams(kind: str, arguments: list[str]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if kind == "sink":
                sink(connection, arguments[0] if arguments else None)
            else:
                send_file(connection, arguments[0], int(arguments[1]), int(arguments[2]))


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "ping-pong":
        uvloop.run(serve_ping_pong(int(arguments[0]), bytes.fromhex(arguments[1])))
    else:
        serve_streams(kind, arguments)


if __name__ == "__main__":
    main()
