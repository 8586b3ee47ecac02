"""The coordination stores that a run takes away from its brokers, from all or from one, and gives back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.cluster.layout import CONTROLLER, broker_path, decode_controller
from klamm.coordination.store import Node
from klamm.testing.links import Links
from tests.peers.zookeeper import ZooKeeper

SERVER_ID = 0
"""The number of ZooKeeper among the brokers, which are numbered from 1."""
CHROOT = "/faults"
ANSWER_S = 30.0


class StoreControl(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str | Mapping[int, str]:
        """Where the brokers find it: all at one address, or each at its own."""

    def away(self, random: Random) -> AbstractContextManager[None]:
        """Until the context ends, no broker can write to the store."""


class SqliteFile:
    """A file, which no network can take from one broker alone."""

    name = "SQLite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite://{path}"
        self._lock = f"{path}.lock"

    @contextmanager
    def away(self, random: Random) -> Iterator[None]:
        """Hold the lock that all writers share, as one that is stopped in the middle of a commit does."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class ZooKeeperServer:
    """Each broker has a way of its own to the server, through a proxy that can be cut."""

    name = "ZooKeeper"

    def __init__(self, server: ZooKeeper, broker_ids: Sequence[int]) -> None:
        self._server = server
        self._links = Links()
        self.url = {broker_id: self._url_for(broker_id) for broker_id in broker_ids}
        self._reader = KazooClient(server.hosts, timeout=ANSWER_S)
        """Not through a proxy."""

    def _url_for(self, broker_id: int) -> str:
        (port,) = self._server.ports
        proxy = self._links.open_from(broker_id, SERVER_ID, "127.0.0.1", port)
        return f"zookeeper://127.0.0.1:{proxy}{CHROOT}"

    def __enter__(self) -> ZooKeeperServer:
        self._reader.start(ANSWER_S)
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.stop()
        self._reader.close()
        self._links.close()

    @contextmanager
    def away(self, random: Random) -> Iterator[None]:
        """Kill the server and start it again, or pause it."""
        (self._server.kill if random.random() < 0.5 else self._server.pause)(0)
        try:
            yield
        finally:
            self._server.restore()

    @contextmanager
    def cut_off(self, broker_id: int, *, silent: bool) -> Iterator[None]:
        """Until the context ends, one broker does not reach the server: nothing passes, or its connections
        are reset, and so is each new one."""
        if silent:
            self._links.cut(broker_id, SERVER_ID)
            self._links.cut(SERVER_ID, broker_id)
        else:
            self._links.refuse(broker_id, SERVER_ID)
        try:
            yield
        finally:
            self._links.heal()

    def connection_count(self, broker_id: int) -> int:
        """How many connections a broker has made. Each but its first means that it had given the one before
        up, so that its session was suspended."""
        return self._links.attempt_count(broker_id, SERVER_ID)

    def epoch_of(self, broker_id: int) -> int | None:
        """The epoch in which a broker is registered, None if it is not: if its session has expired."""
        stat = self._reader.retry(self._reader.exists, CHROOT + broker_path(broker_id))
        return None if stat is None else int(stat.czxid)

    def controller(self) -> int | None:
        """The broker that is the controller, says the server."""
        try:
            value, stat = self._reader.retry(self._reader.get, CHROOT + CONTROLLER)
        except NoNodeError:
            return None
        broker_id, _ = decode_controller(
            CONTROLLER, Node(value, stat.version, stat.czxid, stat.ephemeralOwner)
        )
        return broker_id
