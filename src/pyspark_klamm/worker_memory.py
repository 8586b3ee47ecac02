"""Tunes the memory of Spark's Python workers.

Spark runs the garbage collector after every task of a reused worker. The collector walks all objects, and
nearly all of them belong to loaded modules: 160,000 objects, 55 ms, and the worker's next task waits for it.
A streaming query with small batches would spend most of its time there. So every function of ours that runs
in workers calls `freeze_loaded_objects` when it has loaded what it needs.

Workers also allocate buffers of about a megabyte, which the C library returns to the system when they are
freed: half of the kernel's work for a worker that writes rows of 1 KB was to hand out the same memory again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

from pyspark import TaskContext

KEPT_BYTES = 256 * 1024 * 1024
"""The most freed memory that a worker keeps; more than it needs at a time."""

LARGEST_PIECE_BYTES = 32 * 1024 * 1024
"""The largest allocation from kept memory; larger ones come from the system each time."""

# From malloc.h. With one arena only, as the arenas of other threads cannot keep pieces of this size.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_done: dict[str, tuple[int, int]] = {}
"""For each step, in which process it was done, for a worker is forked from a process that may have done it
too; and up to which number."""


def freeze_loaded_objects() -> None:
    """Exclude all loaded objects from garbage collection: once in a worker, and again when another function
    has loaded more modules there. Does nothing outside of workers."""
    if not _is_due("freeze loaded objects", len(sys.modules)):
        return
    gc.collect()  # garbage must not be frozen
    gc.freeze()


def keep_freed_memory() -> None:
    """At the start of a worker's first task: make the C library keep freed memory. Does nothing outside of
    workers, or if the C library cannot."""
    if not _is_due("keep freed memory", 1):
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_ARENA_MAX, 1)
        tune(_M_MMAP_THRESHOLD, LARGEST_PIECE_BYTES)
        tune(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _is_due(what: str, number: int) -> bool:
    """True if this is a worker that has not done `what` yet, or only up to a smaller number."""
    if TaskContext.get() is None:
        return False
    process, done = _done.get(what, (0, 0))
    if process == os.getpid() and number <= done:
        return False
    _done[what] = os.getpid(), number
    return True
