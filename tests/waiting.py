"""Waiting for what announces itself to nobody."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from typing import IO, TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
LOOK_INTERVAL_S = 0.01


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str], patience_s: float = PATIENCE_S
) -> T:
    """Wait until the condition holds and return what it returned; fail with `what` when it never does."""
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise _too_late(what, patience_s)
        time.sleep(LOOK_INTERVAL_S)
    return result


async def until(condition: Callable[[], object], what: str | Callable[[], str] = "it happens") -> None:
    """The same for coroutines: the loop runs on."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise _too_late(what, PATIENCE_S)
        await asyncio.sleep(LOOK_INTERVAL_S / 10)


def is_ready(thing: IO[bytes] | socket.socket, event: int, timeout_s: float) -> bool:
    """Whether there is something to read (POLLIN), or room to write (POLLOUT), within a time."""
    waiting = select.poll()  # select itself takes no descriptor beyond 1,023
    waiting.register(thing.fileno(), event)
    return bool(waiting.poll(timeout_s * 1000))


def _too_late(what: str | Callable[[], str], patience_s: float) -> AssertionError:
    description = what if isinstance(what, str) else what()
    return AssertionError(f"not within {patience_s:.0f} s: {description}")
