"""What a client may leave behind after `close`: nothing. Sockets, threads, tasks and asyncio's complaints."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tests.waiting import wait_until

PATIENCE_S = 10.0
"""The other ends of closed connections are in this process too, and take a moment to notice."""


LISTENING = "0A"
"""The state in /proc/net/tcp."""

NOT_OF_CLIENTS = (
    *("klamm-broker", "klamm-store", "klamm-worker", "klamm-opener", "klamm-flush", "klamm-recovery"),
    *("klamm-closing", "klamm-watchdog", "uvloop_", "asyncio_"),
)
"""Threads of the broker in this process, and those that asyncio's loop keeps for looking up names. The loops
of plain clients need none: uvloop looks up names by itself."""


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(NOT_OF_CLIENTS)}


def client_sockets() -> dict[str, str]:
    """Sockets of this process that neither listen nor were accepted, by inode: their two ends.

    Those of the broker and the proxy in this process have the local port of a listener. What event loops wake
    themselves with is no TCP. A socket that was made and never connected is in no table of the system at all.
    Where a test of this process has started Spark, threads of py4j connect to its Java as they please.
    """
    java_port = _java_port()
    ends = {}
    listening = set()
    for row in _rows("tcp") + _rows("tcp6"):
        local_port = row[1].rpartition(":")[2]
        ends[row[9]] = (local_port, row[2].rpartition(":")[2])
        if row[3] == LISTENING:
            listening.add(local_port)
    unix = {row[6] for row in _rows("unix")}
    found = {}
    for inode in _socket_inodes() - unix:
        local, remote = ends.get(inode, ("", ""))
        if local not in listening and (not remote or int(remote, 16) != java_port):
            found[inode] = f"{int(local, 16)} to {int(remote, 16)}" if local else "not connected"
    return found


def _java_port() -> int | None:
    """The port of Spark's Java, if this process has started it."""
    module = sys.modules.get("pyspark.core.context")
    gateway = None if module is None else module.SparkContext._gateway
    return None if gateway is None else gateway.gateway_parameters.port


def remote_port(ends: str) -> int | None:
    """The port that a socket of `client_sockets` is connected to."""
    remote = ends.rpartition(" to ")[2]
    return int(remote) if remote.isdigit() else None


def _rows(table: str) -> list[list[str]]:
    path = Path("/proc/self/net") / table
    return [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []


def _socket_inodes() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _wait_until_gone(left: Callable[[], Collection[object]], what: str, patience_s: float) -> None:
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), what, patience_s)
    assert not (remains := left()), f"the client left {what} behind: {remains}"


class Complaints(logging.Handler):
    """What asyncio logs when a task is lost or a callback fails; nobody would see it otherwise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


YOUNG, ALL = 1, 2
"""Generations of the garbage collector. What one test made is young; all of it takes a tenth of a second."""


@contextlib.contextmanager
def nothing_complains(generations: int = ALL) -> Iterator[None]:
    """Nothing that was made in the block makes asyncio complain, at the latest when it is collected."""
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    try:
        yield
        gc.collect(generations)
    finally:
        logging.getLogger("asyncio").removeHandler(complaints)
    assert not complaints.lines, "\n".join(complaints.lines)


@contextlib.contextmanager
def nothing_leaks(
    loop: asyncio.AbstractEventLoop | None = None,
    patience_s: float = PATIENCE_S,
    to_ports: Collection[int] | None = None,
) -> Iterator[None]:
    """After the block there are no more sockets, threads or tasks (of `loop`) than before it. With `to_ports`
    only sockets to these ports count: others come and go in this process."""
    sockets, threads = client_sockets(), client_threads()
    tasks = tasks_of(loop)
    with nothing_complains(YOUNG):
        yield
        _wait_until_gone(lambda: client_threads() - threads, "threads", patience_s)
        _wait_until_gone(lambda: tasks_of(loop) - tasks, "tasks", patience_s)
        _wait_until_gone(
            lambda: {
                key: ends
                for key, ends in client_sockets().items()
                if key not in sockets and (to_ports is None or remote_port(ends) in to_ports)
            },
            "sockets",
            patience_s,
        )


def tasks_of(loop: asyncio.AbstractEventLoop | None) -> set[asyncio.Task[object]]:
    if loop is None:
        return set()

    async def look() -> set[asyncio.Task[object]]:
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    return asyncio.run_coroutine_threadsafe(look(), loop).result(PATIENCE_S)
