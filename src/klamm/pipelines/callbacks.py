"""Makes sure that Spark can call back into this process, as `foreachBatch` needs it.

Spark's JVM connects to a socket of this process, on which py4j waits with `select`, which cannot handle
descriptors above 1,023. In a process with that many open files py4j only logs a line, and every batch would
wait for ever.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from klamm.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_DESCRIPTORS = 1024


def ensure_callbacks(spark: SparkSession) -> None:
    """Start py4j's callback server. Raises PipelineError if it could not work."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    if vars(gateway).get("_callback_server") is None:
        with socket.socket() as probe:  # gets the lowest free descriptor, as the next socket will
            lowest = probe.fileno()
        if lowest >= MOST_DESCRIPTORS:
            raise PipelineError(
                f"this process has {_open_files():,} open files and sockets, too many for Spark to call it: "
                f"py4j needs a descriptor below {MOST_DESCRIPTORS:,}",
                advice="Close some, start the pipelines before they are opened, or run them in a process of "
                "their own",
            )
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]


def _open_files() -> int:
    """The number of open descriptors; at least MOST_DESCRIPTORS if the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return MOST_DESCRIPTORS
