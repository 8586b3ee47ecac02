"""Timers on a monotonic clock, behind an interface, so that tests can move the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def now_ms(self) -> int:
        """Milliseconds of a monotonic clock that starts anywhere."""

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> TimerHandle: ...


class LoopTimers:
    """The timers of the running event loop."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> TimerHandle:
        # `now_ms` is rounded down: without the extra millisecond a timer could fire too early by that clock.
        return asyncio.get_running_loop().call_at((when_ms + 1) / 1000, callback)


async def wait_until(timers: Timers, when_ms: int, woken: asyncio.Future[None] | None = None) -> None:
    """Sleep by the clock of `timers`, at most until `woken` is done."""
    woken = woken or asyncio.get_running_loop().create_future()
    timer = timers.call_at(when_ms, lambda: None if woken.done() else woken.set_result(None))
    try:
        await woken
    finally:
        timer.cancel()
