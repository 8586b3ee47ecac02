"""Spark's Python daemon, whose workers end without a stack trace when Spark closes their connection, and
forget modules whose files may have changed.

Spark starts this module as a process (`hang_ups.py` says why), which forks off a worker for each connection.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

from pyspark_klamm.hang_ups import HANG_UPS
from pyspark_klamm.worker_modules import forget_modules

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """Run a task in a worker, as Spark's daemon does; end the worker when its connection was closed."""
    try:
        # Before the task is waited for: what the last one has imported.
        forget_modules()
        return _work(sock, authenticated)
    except HANG_UPS:
        os._exit(1)  # as Spark's daemon ends a worker that failed


if __name__ == "__main__":
    daemon.worker = work
    daemon.manager()
