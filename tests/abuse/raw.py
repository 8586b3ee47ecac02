"""Raw bytes: frames made by hand, and sockets that break the rules of the protocol."""

from __future__ import annotations

import socket
import struct

from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.headers import encode_request_frame
from klamm.protocol.schema import Message

PATIENCE_S = 60.0
"""A broker that neither answers nor closes the connection for so long hangs."""

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
    """All bytes until the broker closes the connection; fails if it does not close it in time."""
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
    """Send `data`, shut down sending, and return all bytes until the broker closes the connection."""
    with open_socket(bootstrap) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            # The broker has closed the connection already; its answers do not matter then.
            return b""
        return read_to_end(sock)
