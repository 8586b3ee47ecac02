"""Runs long work in a thread, shows its progress on stderr, and ends it on Ctrl-C or SIGTERM.

On a terminal the progress is one live line; elsewhere a line is logged now and then. The first signal asks
the work to stop; a second signal, or some seconds of waiting, makes it give up requests in flight.
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
"""How long work may take to stop by itself. A broker that does not answer within this time is gone."""

ABANDON_PATIENCE_S = 5.0
"""How long work may take to stop after `abandon`."""

logger = logging.getLogger("klamm.ingest")


class Work(Protocol):
    """Work that `run_work` can run. `run` is called in a thread, `abandon` from the main thread."""

    def run(self, stop: threading.Event) -> object: ...

    def abandon(self) -> None: ...


def say(text: str) -> None:
    """Log a warning; on a terminal it appears above the live line."""
    logger.warning(text)


def run_work(work: Work, line: Callable[[], str]) -> None:
    """Run the work to its end and raise what it raises. `line` returns its progress."""
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
    """Wait until the work has stopped; abandon it after a second signal or STOP_PATIENCE_S."""
    deadline = time.monotonic() + STOP_PATIENCE_S
    while thread.is_alive() and time.monotonic() < deadline and len(signals) < 2:
        wake.clear()
        thread.join(0.05)
    if thread.is_alive():
        work.abandon()
        thread.join(ABANDON_PATIENCE_S)


class _Display:
    """Shows the line of progress, live or logged."""

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
