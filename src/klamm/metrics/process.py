"""What the operating system says of this process. Reading /proc may take milliseconds: use a thread."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_START_TIME_FIELD = 22 - 3
"""Of /proc/self/stat, counted behind the name of the program."""


class ProcessState(NamedTuple):
    cpu_s: float
    resident_bytes: int
    open_descriptors: int
    most_descriptors: int
    started_s: float


def read_process() -> ProcessState:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident_bytes, started_s, open_descriptors = usage.ru_maxrss * 1024, 0.0, 0
    with suppress(OSError):  # systems without /proc
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident_bytes = resident_pages * resource.getpagesize()
        started_s = _started_s()
        open_descriptors = len(os.listdir("/proc/self/fd")) - 1  # one is that of the listing
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessState(usage.ru_utime + usage.ru_stime, resident_bytes, open_descriptors, soft, started_s)


def _started_s() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot_s = int(fields[_START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
