"""Work that takes its time: done in a thread, shown on stderr, ended by Ctrl-C or SIGTERM.

On a terminal one line is kept up to date; elsewhere a line is logged now and then. The first signal asks the
work to stop; a second one, or some seconds of waiting, has it give up what is on its way.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

LIVE_INTERVAL_S = 0.5
LOG_INTERVAL_S = 10.0

STOP_PATIENCE_S = 10.0
"""How long work may take to end by itself: brokers that do not answer within that are away."""

ABANDON_PATIENCE_S = 5.0
"""And how long it may take when it was abandoned."""

logger = logging.getLogger("klamm.ingest")


class Work(Protocol):
    """What can be run here. `run` is called in a thread, the rest from the main one."""

    def run(self, stop: threading.Event) -> object: ...

    def abandon(self) -> None: ...


def say(text: str) -> None:
    """Tell something of note, above the live line."""
    logger.warning(text)


def run_work(work: Work, line: Callable[[], str]) -> None:
    """Run it to its end; raises what it raises. `line` says how it goes."""
    stop = threading.Event()
    wake = threading.Event()
    failures: list[BaseException] = []
    signals: list[int] = []

    def body() -> None:
        try:
            work.run(stop)
        except BaseException as error:
            failures.append(error)
        finally:
            wake.set()

    def told(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        stop.set()
        wake.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    thread = threading.Thread(target=body, name="klamm-work", daemon=True)
    try:
        thread.start()
        with _Display(line) as display:
            _watch(thread, wake, stop, display)
        if thread.is_alive():
            _end(thread, wake, work, signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failures:
        raise failures[0]


def _watch(thread: threading.Thread, wake: threading.Event, stop: threading.Event, display: _Display) -> None:
    while thread.is_alive() and not stop.is_set():
        if not wake.wait(display.interval_s):
            display.show()


def _end(thread: threading.Thread, wake: threading.Event, work: Work, signals: list[int]) -> None:
    """It was told to stop: wait for it, but not for ever."""
    deadline = time.monotonic() + STOP_PATIENCE_S
    while thread.is_alive() and time.monotonic() < deadline and len(signals) < 2:
        wake.clear()
        thread.join(0.05)
    if thread.is_alive():
        work.abandon()
        thread.join(ABANDON_PATIENCE_S)


class _Display:
    """The line, live or logged."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        is_live = sys.stderr.isatty()
        self._live = (
            Live(console=Console(stderr=True), auto_refresh=False, transient=True) if is_live else None
        )
        self.interval_s = LIVE_INTERVAL_S if is_live else LOG_INTERVAL_S

    def __enter__(self) -> _Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        if self._live is None:
            logger.info(self._line())
        else:
            self._live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"), refresh=True)
