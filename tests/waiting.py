"""Waiting for what announces itself to nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

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


def _too_late(what: str | Callable[[], str], patience_s: float) -> AssertionError:
    description = what if isinstance(what, str) else what()
    return AssertionError(f"not within {patience_s:.0f} s: {description}")
