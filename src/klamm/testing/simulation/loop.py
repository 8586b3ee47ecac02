"""An asyncio event loop in virtual time: nothing waits, the clock jumps to the next timer.

Whatever runs on it alone, with chance from one seeded generator, runs the same way each time: timers of one
time run in the order in which they were set. There are no sockets and no threads; what a simulated part would
wait for is a timer. A loop on which nothing is left to happen says so instead of hanging.

Coroutines and the usual calls of asyncio work. `schedule` is a timer without a handle, several times cheaper;
what its callback raises ends the run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")


class NothingLeftToHappen(RuntimeError):
    """The loop runs, but no callback is ready and no timer is set."""


class VirtualLoop(asyncio.BaseEventLoop):
    # What asyncio's loop keeps, which its type does not tell.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._timer_count = 0

    def time(self) -> float:
        return self._now_s

    @property
    def now_ms(self) -> int:
        return int(self._now_s * 1000)

    def schedule(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.schedule_at(self._now_s + delay_s, callback, *arguments)

    def schedule_at(self, when_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (when_s, self._timer_count, callback, arguments))

    def run_for(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self.schedule(seconds, self.stop)
        self.run_forever()

    # ---- what asyncio's own loop is made of

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.schedule_at(when, self._on_timer, handle)
        return handle

    def _on_timer(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)

    def _run_once(self) -> None:
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        timers = self._timers
        while not ready and not self._stopping:
            if not timers:
                raise NothingLeftToHappen("no callback is ready and no timer is set")
            when_s, _, callback, arguments = heapq.heappop(timers)
            if when_s > self._now_s:
                self._now_s = when_s
            callback(*arguments)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is left out when its time comes."""

    def _write_to_self(self) -> None:
        """There are no other threads to wake the loop from."""
