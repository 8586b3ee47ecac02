"""Bytes as they are: frames made by hand, and sockets without manners."""

from __future__ import annotations

import socket
import struct

from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.headers import encode_request_frame
from klamm.protocol.schema import Message

PATIENCE_S = 20.0
"""No answer and no hang-up for so long is a hang."""

_SIZE = struct.Struct(">i")


def open_socket(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frame_of(request: Message, version: int | None = None, correlation_id: int = 1) -> bytes:
    """A whole request, its size first."""
    assert request.__api_key__ is not None
    key = ApiKey(request.__api_key__)
    if version is None:
        version = API_VERSIONS[key].max_version
    return b"".join(encode_request_frame(key, version, correlation_id, "abuser", request))


def sized(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


def read_to_end(sock: socket.socket) -> bytes:
    """All that comes until the broker hangs up; a broker that does neither for long is at fault."""
    received = bytearray()
    try:
        while piece := sock.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    except TimeoutError:
        raise AssertionError(f"neither an answer nor a hang-up within {PATIENCE_S:.0f} s") from None
    return bytes(received)


def read_frame(sock: socket.socket) -> bytes:
    """One response without its size."""
    (size,) = _SIZE.unpack(_read_exactly(sock, _SIZE.size))
    return _read_exactly(sock, size)


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError(f"the broker hung up after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def send_and_leave(bootstrap: str, data: bytes) -> bytes:
    """Send `data`, say that no more will come, and return what the broker said before it hung up."""
    with open_socket(bootstrap) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            # It has hung up already. What it said before is of no interest then.
            return b""
        return read_to_end(sock)
