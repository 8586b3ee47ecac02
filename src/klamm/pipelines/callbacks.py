"""Whether Spark can call this process, as it does to hand over a batch.

Spark's JVM connects to a socket of the driver for that. py4j, which listens there, waits with `select`, and
that takes no descriptor beyond 1,023. In a process with so many open files it gives up on the socket with no
more than a line in the log, and every batch would wait for ever.
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
    """Have Spark able to call this process. Raises PipelineError when it cannot be."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    if vars(gateway).get("_callback_server") is None:
        with socket.socket() as probe:  # it gets the lowest descriptor that is free, as the next one will
            lowest = probe.fileno()
        if lowest >= MOST_DESCRIPTORS:
            raise PipelineError(
                f"Spark cannot hand its batches to this process, which has {_open_files():,} open files and "
                f"sockets: what waits for Spark here needs one of the first {MOST_DESCRIPTORS:,}",
                advice="Close some, start the pipelines before they are opened, or run them in a process of "
                "their own",
            )
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]


def _open_files() -> int:
    """How many there are at least, where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return MOST_DESCRIPTORS
