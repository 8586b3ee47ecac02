"""The memory of Spark's Python workers: what they have loaded, and what they use again and again.

Spark collects garbage after every task of a worker that it uses again. That walks every object there is, and
here nearly all of them belong to modules that stay: 160,000, which takes 55 ms, and the worker's next task
waits for it. A streaming query with small batches would spend most of its time there.

And what a worker moves comes in pieces of a megabyte, which the C library gives back to the system one by
one: of the kernel's work for a worker that writes rows of 1 KB, half was to hand out the same memory anew.
"""

from __future__ import annotations

import ctypes
import gc
import os

from pyspark import TaskContext

KEPT_BYTES = 256 * 1024 * 1024
"""How much freed memory a worker keeps at most; more than one needs at a time."""

LARGEST_PIECE_BYTES = 32 * 1024 * 1024
"""The most that the C library takes from what it keeps; larger pieces it gets from the system each time."""

# Of malloc.h; the arenas of other threads could not keep pieces of this size.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_done_in: dict[str, int] = {}
"""The process in which something was done: workers are forked off one that may have done it, too."""


def settle() -> None:
    """At the end of a task, when all that tasks need is loaded. Elsewhere the collector is left as it is."""
    if not _is_due("settle"):
        return
    gc.collect()  # what is garbage now must not be kept
    gc.freeze()


def keep_freed_memory() -> None:
    """At the start of a task: have the C library keep what is freed. Elsewhere, and where it cannot, nothing
    is changed."""
    if not _is_due("keep freed memory"):
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_ARENA_MAX, 1)
        tune(_M_MMAP_THRESHOLD, LARGEST_PIECE_BYTES)
        tune(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _is_due(what: str) -> bool:
    """Whether this is a worker, and it has not done that yet."""
    if TaskContext.get() is None or _done_in.get(what) == os.getpid():
        return False
    _done_in[what] = os.getpid()
    return True
