"""Logs the records that failed without anybody looking at their deliveries.

That is known when the last delivery of a batch is freed, on any thread and perhaps under a lock. So the
failure is only noted there, and logged on the client's loop soon after.
"""

from __future__ import annotations

import asyncio
import threading
import time

from klamm.client.logs import ClientLogger
from klamm.client.producer.batches import FailureNotice

MOST_LINES = 10
WINDOW_S = 10.0
"""At most MOST_LINES lines are logged in this time. Further failures are counted, and the next line says how
many there were."""


class UnseenFailures:
    """The failures of one producer. `add` is called from any thread, and must not fail."""

    def __init__(self, logger: ClientLogger) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop to log on; None before the producer started and after it was closed: then `add` logs."""
        self.is_forked = False
        """True in a forked child, which logs nothing: the parent logs these failures."""
        self._logger = logger
        # Reentrant, because code that runs under the lock may free another batch.
        self._lock = threading.RLock()
        self._noted: list[FailureNotice] = []
        self._is_scheduled = False
        self._window_ends = 0.0
        self._lines = 0
        self._untold_batches = 0
        self._untold_records = 0

    def add(self, notice: FailureNotice) -> None:
        notice.is_seen = True  # `_noted` keeps the notice alive; when it is freed again it must not be added
        if self.is_forked:
            return
        with self._lock:
            self._noted.append(notice)
            is_scheduled, self._is_scheduled = self._is_scheduled, self.loop is not None
            if is_scheduled and self._is_scheduled:
                return
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(self._log)
                return
            except RuntimeError:  # it is closed
                self.loop = None
        self._log()

    def close(self) -> None:
        """Log all that was noted. Later failures are logged at once."""
        self.loop = None
        self._log()
        with self._lock:
            records, self._untold_records = self._untold_records, 0
            batches, self._untold_batches = self._untold_batches, 0
        if batches:
            self._logger.warning("%d more records in %d batches were not delivered", records, batches)

    def _log(self) -> None:
        with self._lock:
            self._is_scheduled = False
            noted, self._noted = self._noted, []
            lines = [line for notice in noted if (line := self._line(notice)) is not None]
        for line in lines:
            self._logger.warning("%s", line)

    def _line(self, notice: FailureNotice) -> str | None:
        now = time.monotonic()
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_S
            self._lines = 0
        self._lines += 1
        if self._lines > MOST_LINES:
            self._untold_batches += 1
            self._untold_records += notice.count
            return None
        line = (
            f"{notice.count} records to {notice.place} were not delivered, and nobody looked at their "
            f"deliveries: {notice.error}"
        )
        if self._untold_batches:
            line += f" (and {self._untold_records} more records in {self._untold_batches} batches)"
            self._untold_batches = self._untold_records = 0
        return line
