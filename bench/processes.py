"""CPU time and resident memory of a broker with all its children, from /proc; and pinning to cores."""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))


class Placement(enum.Enum):
    """The cores of Klamm, the machine's own servers and the raw load. Apache Kafka always runs on all cores.

    A broker of one thread never has more than one core, wherever it is. What differs is the price of a
    wake-up: between two cores of a virtual machine it can be a hundred microseconds, on one core a few.
    """

    FREE = "free"  # where the kernel puts them, as for a user and as for Apache Kafka
    SPLIT = "split"  # the server on the first core, the load on the last


placement = Placement.FREE


def describe_placement() -> str:
    if placement is Placement.FREE:
        return f"nothing is pinned: brokers, clients and load run on any of the {len(CORES)} cores"
    return f"Klamm is pinned to core {CORES[0]}, the raw load to core {CORES[-1]}; all else runs on any core"


@contextlib.contextmanager
def on_load_core() -> Iterator[None]:
    """Around the raw load only: a child started inside would inherit it."""
    if placement is Placement.SPLIT:
        os.sched_setaffinity(0, {CORES[-1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def place_server(pid: int) -> None:
    """To be called right after the start: threads inherit it from the first one."""
    if placement is Placement.SPLIT:
        os.sched_setaffinity(pid, {CORES[0]})


def touch_memory(work_dir: Path, size: int) -> None:
    """Makes sure that the next `size` bytes of page cache are backed by real memory.

    A virtual machine may give free memory back to its host, and then the first write to a page costs ten
    times the second. Whoever is measured after a pause would pay for it, so pages are used and freed before.
    """
    path, block = work_dir / "touched", bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)
    path.unlink()


class HeldMemory:
    """Memory that is backed by the host, held until whoever is measured is about to need it.

    For a measurement that begins seconds after its preparation: what `touch_memory` has freed may be the
    host's again by then. Huge pages are freed within milliseconds.
    """

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        for position in range(0, size, mmap.PAGESIZE):
            self._map[position] = 1

    def release(self) -> None:
        self._map.close()


def process_tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    ticks = 0
    for one in process_tree(pid):
        with contextlib.suppress(OSError):  # ended since it was listed
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and what it has waited for
    return ticks / TICKS_A_SECOND


def own_cpu_ns(pid: int) -> int:
    """Of the process alone, without its children, and finer than clock ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def resident_mb(pid: int) -> float:
    kilobytes = 0
    for one in process_tree(pid):
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                kilobytes += int(line.split()[1])
    return kilobytes * 1024 / 1e6


def seconds_since_start(pid: int) -> float:
    """How long ago the process started, to a clock tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS_A_SECOND
