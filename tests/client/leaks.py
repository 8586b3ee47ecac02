"""What a client may leave behind after `close`: nothing. Sockets, threads, tasks and asyncio's complaints."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import Iterator

from tests.abuse.broker_process import wait_until

PATIENCE_S = 10.0
"""The other ends of closed connections are in this process too, and take a moment to notice."""


NOT_OF_CLIENTS = (
    *("klamm-broker", "klamm-store", "klamm-worker", "klamm-opener", "klamm-flush", "klamm-recovery"),
    *("klamm-closing", "asyncio_"),
)
"""Threads of the broker in this process, and those that asyncio's loop keeps for looking up names."""


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(NOT_OF_CLIENTS)}


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


class Complaints(logging.Handler):
    """What asyncio logs when a task is lost or a callback fails; nobody would see it otherwise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def nothing_leaks(
    loop: asyncio.AbstractEventLoop | None = None, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """After the block there are no more sockets, threads or tasks (of `loop`) than before it."""
    gc.collect()
    sockets, threads = open_sockets(), client_threads()
    tasks = tasks_of(loop)
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    try:
        yield
        wait_until(
            lambda: not client_threads() - threads,
            "the client's threads ended",
            patience_s,
        )
        wait_until(lambda: not tasks_of(loop) - tasks, "the client's tasks ended", patience_s)
        wait_until(lambda: open_sockets() <= sockets, "the client's sockets are closed", patience_s)
        # A task that nobody awaits complains when it is collected.
        gc.collect()
    finally:
        logging.getLogger("asyncio").removeHandler(complaints)
    assert not complaints.lines, "\n".join(complaints.lines)


def tasks_of(loop: asyncio.AbstractEventLoop | None) -> set[asyncio.Task[object]]:
    if loop is None:
        return set()

    async def look() -> set[asyncio.Task[object]]:
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    return asyncio.run_coroutine_threadsafe(look(), loop).result(PATIENCE_S)
