"""The coordination stores that a run takes away from its brokers and gives back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from tests.peers.zookeeper import ZooKeeper


class StoreControl(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    def away(self, random: Random) -> AbstractContextManager[None]:
        """Until the context ends, no broker can write to the store."""


class SqliteFile:
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
    name = "ZooKeeper"

    def __init__(self, server: ZooKeeper) -> None:
        self._server = server
        self.url = f"zookeeper://{server.hosts}/faults"

    @contextmanager
    def away(self, random: Random) -> Iterator[None]:
        """Kill the server and start it again, or pause it."""
        (self._server.kill if random.random() < 0.5 else self._server.pause)(0)
        try:
            yield
        finally:
            self._server.restore()
