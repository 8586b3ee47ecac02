"""Python processes of Spark end without a stack trace when Spark closes their connection.

Spark closes the connections of tasks that it cancels and of queries that are stopped. A process that is about
to answer then gets a BrokenPipeError. Nothing is wrong, but Spark would print the stack trace to the user's
terminal. There are two kinds of such processes:

- Workers of tasks are forked off a daemon. Sessions on one machine start `pyspark_klamm.daemon` in place of
  Spark's own (`spark.python.daemon.module`).
- The reader of a streaming query has a process of its own, which calls `end_quietly`.
"""

from __future__ import annotations

import sys
from types import TracebackType

HANG_UPS = (BrokenPipeError, ConnectionResetError)
"""What a process gets that writes to a connection which Spark has closed."""

_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


def end_quietly() -> None:
    """In the process of a query's reader: print no stack trace when the process ends by a hang-up."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _READER_PROCESS:
        sys.excepthook = _print_unless_hung_up


def _print_unless_hung_up(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, HANG_UPS):
        sys.__excepthook__(kind, error, trace)
