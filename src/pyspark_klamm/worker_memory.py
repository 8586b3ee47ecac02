"""Tunes the memory of Spark's Python workers.

Spark runs the garbage collector after every task of a reused worker. The collector walks all objects, and
nearly all of them belong to loaded modules: 160,000 objects, 55 ms, and the worker's next task waits for it.
A streaming query with small batches would spend most of its time there.

Workers also allocate buffers of about a megabyte, which the C library returns to the system when they are
freed: half of the kernel's work for a worker that writes rows of 1 KB was to hand out the same memory again.
"""

from __future__ import annotations

import ctypes
import gc
import os

from pyspark import TaskContext

KEPT_BYTES = 256 * 1024 * 1024
"""The most freed memory that a worker keeps; more than it needs at a time."""

LARGEST_PIECE_BYTES = 32 * 1024 * 1024
"""The largest allocation from kept memory; larger ones come from the system each time."""

# From malloc.h. With one arena only, as the arenas of other threads cannot keep pieces of this size.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_done_in: dict[str, int] = {}
"""The process in which each step was done: a worker is forked from a process that may have done it too."""


def freeze_loaded_objects() -> None:
    """At the end of a worker's first task: exclude all loaded objects from garbage collection. Does nothing
    outside of workers."""
    if not _is_due("freeze loaded objects"):
        return
    gc.collect()  # garbage must not be frozen
    gc.freeze()


def keep_freed_memory() -> None:
    """At the start of a worker's first task: make the C library keep freed memory. Does nothing outside of
    workers, or if the C library cannot."""
    if not _is_due("keep freed memory"):
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_ARENA_MAX, 1)
        tune(_M_MMAP_THRESHOLD, LARGEST_PIECE_BYTES)
        tune(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _is_due(what: str) -> bool:
    """True if this is a worker that has not done `what` yet."""
    if TaskContext.get() is None or _done_in.get(what) == os.getpid():
        return False
    _done_in[what] = os.getpid()
    return True
