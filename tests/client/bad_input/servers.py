"""Things that listen where a broker was expected, and are none.

Each is a function from an accepted socket to whatever it does with it; `serving` runs one on a free port.
What is not even a server (a closed port, a host that says nothing) is here too, as an address.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from random import Random

Handler = Callable[[socket.socket], None]

LARGEST_REQUEST_BYTES = 1 << 16
GARBAGE_SEED = 4


def closes_at_once(client: socket.socket) -> None:
    """Accepts and hangs up."""


def says_nothing(client: socket.socket) -> None:
    while client.recv(LARGEST_REQUEST_BYTES):
        pass


def speaks_garbage(client: socket.socket) -> None:
    random = Random(GARBAGE_SEED)
    while client.recv(LARGEST_REQUEST_BYTES):
        client.sendall(random.randbytes(10_000))


def speaks_http(client: socket.socket) -> None:
    client.recv(LARGEST_REQUEST_BYTES)
    body = b"<html><body>Bad Request</body></html>"
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


def speaks_tls(client: socket.socket) -> None:
    """What a TLS server says to somebody without TLS: a fatal alert, protocol_version."""
    client.recv(LARGEST_REQUEST_BYTES)
    client.sendall(bytes([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46]))


def greets_like_ssh(client: socket.socket) -> None:
    """Talks before it was asked."""
    client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    says_nothing(client)


def announces_two_gigabytes(client: socket.socket) -> None:
    """A frame whose end is never reached."""
    client.recv(LARGEST_REQUEST_BYTES)
    client.sendall(struct.pack(">i", 2**31 - 1) + bytes(1000))
    says_nothing(client)


def announces_less_than_nothing(client: socket.socket) -> None:
    client.recv(LARGEST_REQUEST_BYTES)
    client.sendall(struct.pack(">i", -5) + bytes(1000))
    says_nothing(client)


def answers_empty_frames(client: socket.socket) -> None:
    while client.recv(LARGEST_REQUEST_BYTES):
        client.sendall(bytes(4))


def answers_with_the_question(client: socket.socket) -> None:
    """An echo server: the correlation id is not where it looks for it."""
    while data := client.recv(LARGEST_REQUEST_BYTES):
        client.sendall(data)


HANDLERS: tuple[Handler, ...] = (
    closes_at_once,
    says_nothing,
    speaks_garbage,
    speaks_http,
    speaks_tls,
    greets_like_ssh,
    announces_two_gigabytes,
    announces_less_than_nothing,
    answers_empty_frames,
    answers_with_the_question,
)


@contextlib.contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """The address where `handler` gets every connection, each in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: set[socket.socket] = set()
    threads: list[threading.Thread] = []

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            handler(client)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.add(client)
                threads.append(threading.Thread(target=serve, args=(client,), name="strange-server"))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, name="strange-acceptor")
    acceptor.start()
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        _end(listener)
        acceptor.join()
        for client in clients:
            _end(client)
        for thread in threads:
            thread.join()


def _end(sock: socket.socket) -> None:
    """Wake up who waits for it, and close it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """An address where nobody listens, and nobody else can begin to meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address that neither accepts nor refuses: its queue of new connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            queued = stack.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
