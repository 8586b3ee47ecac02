"""An asyncio event loop in virtual time: nothing waits, the clock jumps to the next timer.

Whatever runs on it alone, with chance from one seeded generator, runs the same way each time: timers of one
time run in the order in which they were set. There are no sockets and no threads; what a simulated part would
wait for is a timer. A loop on which nothing is left to happen says so instead of hanging.

Coroutines and the usual calls of asyncio work. `schedule` is a timer without a handle, several times cheaper;
what its callback raises ends the run.

A simulated process has an event loop of its own on top of it (`ProcessLoop`): a process that is paused or
killed takes all its tasks and timers with it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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

    def run_soon(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

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
        self.schedule_at(when, self.run_unless_cancelled, handle)
        return handle

    def run_unless_cancelled(self, handle: asyncio.Handle) -> None:
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


Run = Callable[[Callable[[], None]], None]
"""Calls back as something that happens in a process: later if that is paused, never if it is dead."""


class _InProcess(asyncio.Handle):
    """Runs as something that happens in its process, unless it was cancelled meanwhile by what ran before."""

    _loop: ProcessLoop

    def _run(self) -> None:
        self._loop.run_in_process(self._run_now)

    def _run_now(self) -> None:
        if not self.cancelled():
            super()._run()


class _Handle(_InProcess):
    """A callback of a process."""


class _TimerHandle(_InProcess, asyncio.TimerHandle):
    """A callback of a process, at its time."""


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one life of a simulated process."""

    def __init__(
        self, virtual: VirtualLoop, run_in_process: Run, on_error: Callable[[dict[str, Any]], None]
    ) -> None:
        """`on_error` gets what went wrong without anybody looking, as asyncio's exception handlers do."""
        self._is_over = False
        super().__init__()
        self._virtual = virtual
        self.run_in_process = run_in_process
        self._on_error = on_error
        self._left: list[asyncio.Task[Any]] = []

    def end(self) -> None:
        """The process is dead. Its tasks stay where they are: not even their `finally` runs."""
        self._is_over = True
        self._left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())

    def dispose(self) -> None:
        """After the run: close what `end` has left, so that nothing of it happens at a time of the garbage
        collector's choice."""
        self.end()
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if coroutine is not None:
                with suppress(BaseException):
                    coroutine.close()

    def time(self) -> float:
        return self._virtual.time()

    def is_closed(self) -> bool:
        return self._is_over

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self._is_over:
            self._virtual.run_soon(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        if not self._is_over:
            self._virtual.schedule_at(when, self._virtual.run_unless_cancelled, handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_over:
            self._on_error(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """As in `VirtualLoop`."""
