"""The engines under the contract, each with a place of its own for every test, and processes that hold a
session of it."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

from klamm.coordination.store import Store
from tests.conftest import cannot_run
from tests.coordination.session_holder import store_at
from tests.peers.kafka_jars import PeerMissing
from tests.peers.zookeeper import ZooKeeper

HOLDER = Path(__file__).with_name("session_holder.py")


class SessionHolder:
    """Another process with an open store and one ephemeral node. It does what it is told on its input."""

    def __init__(self, address: str, path: str, session_timeout_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HOLDER), address, path, str(session_timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.session_id = int(self._line())

    def __enter__(self) -> SessionHolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def tries_to_write(self) -> list[str]:
        self._tell("write")
        return (await asyncio.to_thread(self._line)).split()

    def hang(self) -> None:
        self._tell("hang")
        assert self._line() == "hanging"

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that holds a session has ended by itself"
        return line.strip()


class Engine:
    """Where the stores of one test are."""

    examples = 40
    """How many histories are compared with a dictionary."""
    killed_session_timeout_s = 3.0
    paused_session_timeout_s = 3.0
    session_timeout_s = 20.0
    """Of stores that must not lose their session, however busy the machine is."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def new_store(self, session_timeout_s: float | None = None) -> Store:
        return store_at(self._address, session_timeout_s or self.session_timeout_s)

    def holder(self, path: str, session_timeout_s: float) -> SessionHolder:
        return SessionHolder(self._address, path, session_timeout_s)


class SqliteEngine(Engine):
    # The death of a process is noticed without waiting for this.
    killed_session_timeout_s = 600.0

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        super().__init__(f"sqlite://{directory / 'store.db'}")


class ZooKeeperEngine(Engine):
    examples = 15
    _chroots = itertools.count()

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        hosts = request.getfixturevalue("zookeeper").hosts
        super().__init__(f"zookeeper://{hosts}/test/{next(self._chroots)}")


ENGINES = {"sqlite": SqliteEngine, "zookeeper": ZooKeeperEngine}


def start_zookeeper(servers: int = 1) -> ZooKeeper:
    try:
        return ZooKeeper(servers)
    except PeerMissing as problem:
        cannot_run(problem)
