"""What a scrape reads of the process, of its disks, and of how late the event loop is."""

from __future__ import annotations

import asyncio
import time

from klamm.metrics import names
from klamm.metrics.page import Page
from klamm.metrics.process import ProcessState, read_process
from klamm.metrics.request_times import QUANTILES, WINDOW_S, RequestTimes, TimesByApi
from klamm.metrics.text import Sample
from klamm.storage.log_dirs import LogDirs

LAG_INTERVAL_S = 0.25
"""How often the lateness of the event loop is measured."""

READING_TIMEOUT_S = 1.0
"""A disk that does not answer must not hold up a scrape: it is left out until it answers."""

Disks = dict[str, tuple[int, int]]


class Readings:
    def __init__(self, log_dirs: LogDirs, times: TimesByApi) -> None:
        self._log_dirs = log_dirs
        self._times = times
        self._lags = RequestTimes()
        self._reading: asyncio.Future[tuple[ProcessState, Disks]] | None = None
        """Under way, or given up by the scrape that began it: there is never another beside it."""

    async def keep_time(self) -> None:
        """Measure how late the loop is, and turn the windows of all quantiles."""
        window_ends_s = time.monotonic() + WINDOW_S
        while True:
            due_s = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            now_s = time.monotonic()
            self._lags.note(max(0.0, now_s - due_s))
            if now_s >= window_ends_s:
                window_ends_s = now_s + WINDOW_S
                self._times.turn()
                self._lags.turn()

    async def add_to(self, page: Page) -> None:
        for quantile, late_s in zip(QUANTILES, self._lags.quantiles_s(), strict=True):
            labels = (("quantile", f"{quantile:g}"),)
            page.add_sample(names.LOOP_LAG, Sample(names.LOOP_LAG.name, labels, late_s))
        page.add_sample(names.LOOP_LAG, Sample(f"{names.LOOP_LAG.name}_sum", (), self._lags.sum_s))
        page.add_sample(names.LOOP_LAG, Sample(f"{names.LOOP_LAG.name}_count", (), self._lags.count))
        directories = self._log_dirs.directories
        page.add(names.OFFLINE_DIRECTORIES, len(directories) - len(self._log_dirs.online))
        for directory in directories:
            page.add(names.DIRECTORY_OFFLINE, int(directory.is_offline), logdirectory=str(directory.path))
        if self._reading is None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
        reading = self._reading
        await asyncio.wait((reading,), timeout=READING_TIMEOUT_S)
        if reading.done():
            self._reading = None
            _add_process(page, *reading.result())

    def _read(self) -> tuple[ProcessState, Disks]:
        disks: Disks = {}
        for directory in self._log_dirs.online:
            try:
                disks[str(directory.path)] = directory.disk_space()
            except OSError:
                continue  # the broker says so when it writes there
        return read_process(), disks


def _add_process(page: Page, process: ProcessState, disks: Disks) -> None:
    for path, (size, free) in disks.items():
        page.add(names.DISK_SIZE, size, logdirectory=path)
        page.add(names.DISK_FREE, free, logdirectory=path)
    page.add(names.CPU_SECONDS, process.cpu_s)
    page.add(names.RESIDENT_BYTES, process.resident_bytes)
    page.add(names.OPEN_DESCRIPTORS, process.open_descriptors)
    page.add(names.MOST_DESCRIPTORS, process.most_descriptors)
    page.add(names.START_TIME, process.started_s)
