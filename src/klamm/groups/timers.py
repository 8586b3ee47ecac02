"""Timers on monotonic time, behind an interface so that tests can let it pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def now_ms(self) -> int:
        """Monotonic; its zero means nothing."""

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> TimerHandle: ...


class LoopTimers:
    """The timers of the running event loop."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> TimerHandle:
        # A millisecond is cut off `now_ms`: without the extra one a timer would find itself too early.
        return asyncio.get_running_loop().call_at((when_ms + 1) / 1000, callback)
