"""Accepting connections, and ending those that are idle, too many, or left over at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable

from klamm.config.loading import BrokerConfig
from klamm.metrics.request_times import TimesByApi
from klamm.server.connection import Connection, RunInThread
from klamm.server.dispatch import Dispatcher
from klamm.server.joint_sending import JointSending
from klamm.server.receiving import SHARED_BUFFER_BYTES, LargeBuffers
from klamm.server.turns import Turns
from klamm.server.unsent import UnsentAnswers
from klamm.server.work import WorkQueue

logger = logging.getLogger("klamm.server")

ACCEPT_BURST = 100
"""Connections accepted in one iteration of the loop, so that thousands at once do not hold up the others."""

OUT_OF_DESCRIPTORS_PAUSE_S = 0.1

DESCRIPTORS_FOR_FILES = 6_500
"""Descriptors that connections do not get, at most a third of all. Without them idle connections could keep
the broker from opening segments, and so from writing. Segments that are kept open take up to 4,096 of them,
unsent answers up to 2,000."""

REFUSAL_LOG_INTERVAL_S = 1.0
"""Refused connections are logged together, at most once in this time."""

LISTENERS_OPTION = "--port or --listeners"
"""The options that choose the ports of Kafka's protocol."""

IDLE_SWEEPS_PER_PERIOD = 4
LONGEST_SWEEP_INTERVAL_S = 30.0


class CannotListen(Exception):
    """The address cannot be bound; the text says which and why."""


class Server:
    """All listening sockets and connections of one broker."""

    def __init__(
        self, dispatcher: Dispatcher, config: Callable[[], BrokerConfig], run_in_thread: RunInThread
    ) -> None:
        self.dispatcher = dispatcher
        self.run_in_thread = run_in_thread
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.large_buffers = LargeBuffers()
        self.unsent = UnsentAnswers()
        self.work = WorkQueue(self.unsent)
        self.turns = Turns()
        self.joint_sending = JointSending()
        self.request_times = TimesByApi()
        self.accepted: Counter[str] = Counter()
        """How many connections each listener has accepted."""
        self.refused_count = 0
        self._config = config
        self._listening: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._connections_per_host: Counter[str] = Counter()
        self._turned_away: set[str] = set()
        """The names of listeners that accept nobody now."""
        self._sweep: asyncio.TimerHandle | None = None
        self._refused_unlogged = 0
        self._refusal_logged_s = float("-inf")
        self.max_request_bytes = config().int_("socket.request.max.bytes")

    def __len__(self) -> int:
        return len(self._connections)

    def open_connections(self) -> Counter[str]:
        """How many connections each listener has now."""
        return Counter(connection.listener_name for connection in self._connections)

    def bind(self, host: str, port: int) -> socket.socket:
        """A listening socket that does not accept yet; its port is known from here on."""
        sock = bound_socket(host, port)
        try:
            self._set_buffer_sizes(sock)
            sock.listen(1024)
        except OSError as error:
            sock.close()
            raise CannotListen(why_cannot_listen(host, port, error)) from error
        sock.setblocking(False)
        self._listening.append(sock)
        return sock

    def _set_buffer_sizes(self, sock: socket.socket) -> None:
        """The connections that a listening socket accepts inherit its sizes."""
        for option, key in (
            (socket.SO_SNDBUF, "socket.send.buffer.bytes"),
            (socket.SO_RCVBUF, "socket.receive.buffer.bytes"),
        ):
            size = self._config().int_(key)
            if size != -1:
                sock.setsockopt(socket.SOL_SOCKET, option, size)

    def start_accepting(self, sock: socket.socket, listener_name: str) -> None:
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock, listener_name)
        if self._sweep is None:
            self._close_idle()

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._connections_per_host[connection.client_host] -= 1
        if not self._connections_per_host[connection.client_host]:
            del self._connections_per_host[connection.client_host]

    def stop_listening(self, sock: socket.socket) -> None:
        """Close one listening socket. The connections that it accepted stay."""
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.close()
        self._listening.remove(sock)

    def close_connections_of(self, listener_name: str) -> None:
        for connection in tuple(self._connections):
            if connection.listener_name == listener_name:
                connection.close()

    def turn_away(self, listener_name: str) -> None:
        """Close the connections of a listener, and new ones as soon as they come, until `welcome`."""
        self._turned_away.add(listener_name)
        self.close_connections_of(listener_name)

    def welcome(self, listener_name: str) -> None:
        self._turned_away.discard(listener_name)

    def stop_accepting(self) -> None:
        for sock in tuple(self._listening):
            self.stop_listening(sock)
        if self._sweep is not None:
            self._sweep.cancel()

    def close_connections(self) -> None:
        for connection in tuple(self._connections):
            connection.abandon()

    def _accept(self, listening: socket.socket, listener_name: str) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._pause_accepting(listening, listener_name)
                return
            self._admit(sock, address[0], listener_name)

    def _pause_accepting(self, listening: socket.socket, listener_name: str) -> None:
        logger.error("no file descriptors are left for new connections: raise the limit (ulimit -n)")
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())

        def resume() -> None:
            if listening in self._listening:
                loop.add_reader(listening.fileno(), self._accept, listening, listener_name)

        loop.call_later(OUT_OF_DESCRIPTORS_PAUSE_S, resume)

    def _admit(self, sock: socket.socket, host: str, listener_name: str) -> None:
        if listener_name in self._turned_away:
            sock.close()
            return
        limit = self._reached_limit(host)
        if limit is not None:
            self._refuse(sock, host, limit)
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connections_per_host[host] += 1
        self.accepted[listener_name] += 1
        is_for_brokers = listener_name == self._config().inter_broker_listener_name
        self._connections.add(Connection(self, sock, host, listener_name, is_for_brokers=is_for_brokers))

    def _reached_limit(self, host: str) -> str | None:
        """The name of the limit that forbids one more connection of `host`."""
        config = self._config()
        if len(self._connections) >= config.int_("max.connections"):
            return "max.connections"
        if self._connections_per_host[host] >= config.int_("max.connections.per.ip"):
            return "max.connections.per.ip"
        if len(self._connections) >= _descriptors_for_clients():
            return "the share of clients in the file descriptors (ulimit -n)"
        return None

    def _refuse(self, sock: socket.socket, host: str, limit: str) -> None:
        sock.close()
        self.refused_count += 1
        self._refused_unlogged += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refusal_logged_s >= REFUSAL_LOG_INTERVAL_S:
            logger.warning(
                "refused %d connections, the last of %s: %s is reached", self._refused_unlogged, host, limit
            )
            self._refused_unlogged = 0
            self._refusal_logged_s = now_s

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._config().int_("connections.max.idle.ms") / 1000
        if limit_s >= 0:
            for connection in tuple(self._connections):
                if loop.time() - connection.last_active > limit_s and not connection.is_busy:
                    connection.close()
        interval_s = min(LONGEST_SWEEP_INTERVAL_S, max(0.1, limit_s / IDLE_SWEEPS_PER_PERIOD))
        self._sweep = loop.call_later(interval_s, self._close_idle)


def _descriptors_for_clients() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return soft - min(DESCRIPTORS_FOR_FILES, soft // 3)


def bound_socket(host: str, port: int, option: str = LISTENERS_OPTION) -> socket.socket:
    """A socket with this address, which does not listen yet; raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotListen(why_cannot_listen(host, port, error, option)) from error
    return sock


def why_cannot_listen(host: str, port: int, error: OSError, option: str = LISTENERS_OPTION) -> str:
    """One line that says why a port could not be bound, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another process: choose another ({option})"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights: choose one above 1023 ({option})"
    return f"cannot listen on {host}:{port}: {error.strerror}"
