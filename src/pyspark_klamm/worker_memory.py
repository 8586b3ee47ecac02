"""What a Python worker of Spark has loaded, kept out of the way of its garbage collector.

Spark collects garbage after every task of a worker that it uses again. That walks every object there is, and
here nearly all of them belong to modules that stay: 160,000, which takes 55 ms, and the worker's next task
waits for it. A streaming query with small batches would spend most of its time there.
"""

from __future__ import annotations

import gc
import os

from pyspark import TaskContext

_settled_process: int | None = None


def settle() -> None:
    """At the end of a task, when all that tasks need is loaded. Elsewhere the collector is left as it is."""
    global _settled_process
    if _settled_process == os.getpid() or TaskContext.get() is None:
        return
    _settled_process = os.getpid()
    gc.collect()  # what is garbage now must not be kept
    gc.freeze()
