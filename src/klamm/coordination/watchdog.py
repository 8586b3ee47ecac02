"""Ends a process whose event loop hangs.

A store's session is kept alive by a thread, so it outlives a loop that hangs: the others would wait for a
broker that answers nothing. The watchdog is a second thread, and expects a beat of the loop. It counts how
often it has itself come round without one, and not the time: a process that was paused as a whole has a loop
that goes on at once, and its session is the store's matter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol

# How often in the timeout the loop beats and the thread looks.
BEATS_PER_TIMEOUT = 6
EXIT_CODE = 70
"""As sysexits.h has it: an error of the program itself."""


def end_process() -> None:
    """At once, and without the loop: nothing that hangs with it can hold this up."""
    print("klamm: the event loop has hung for the session timeout; the process ends", file=sys.stderr)
    os._exit(EXIT_CODE)


class Watchdog(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def pause(self, until: Callable[[], object]) -> None: ...


class LoopWatchdog:
    """Calls `on_stuck`, in its own thread, when the running loop has not beaten for `timeout_s`."""

    def __init__(self, timeout_s: float, on_stuck: Callable[[], None] = end_process) -> None:
        self._interval_s = timeout_s / BEATS_PER_TIMEOUT
        self._on_stuck = on_stuck
        self._has_beaten = True
        self._is_paused = False
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat()
        threading.Thread(target=self._watch, name="klamm-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def pause(self, until: Callable[[], object]) -> None:
        """For tests: call `until`, which blocks the loop, and take this for no hang."""
        self._is_paused = True
        try:
            until()
        finally:
            # First the beat: the thread may look between the two.
            self._has_beaten = True
            self._is_paused = False

    def _beat(self) -> None:
        self._has_beaten = True
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def _watch(self) -> None:
        missed = 0
        while not self._stopped.wait(self._interval_s):
            missed = 0 if self._has_beaten or self._is_paused else missed + 1
            self._has_beaten = False
            if missed >= BEATS_PER_TIMEOUT:
                self._on_stuck()
                return
