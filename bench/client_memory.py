"""Memory of a producer that is given records as fast as it accepts them while its broker is slow.

The broker's process is stopped most of the time, so that it takes a small share of what the producer could
send and the producer's buffer is full all along. The producer's own count and its process's resident memory
are watched; at the end the broker runs again, and every record must have been acknowledged.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator

from bench import processes
from bench.java_tools import size_text
from bench.peers import KLAMM, Broker, topic
from bench.python_clients import AIO, CONFLUENT, PARTITION_COUNT, PLAIN, WORKERS, addressed
from bench.runner import Bench, Comparison, Figures
from bench.workers import WORKER_TIMEOUT_SECONDS, finish_worker, start_worker, wait_until_ready

SECTION = "client memory"
CLIENTS = (CONFLUENT, AIO, PLAIN)
RECORD_SIZES = (100, 1024)
BUFFER_MB = 32
BUFFER_BYTES = BUFFER_MB << 20
# Besides the records themselves: frames that are built and sent, and freed memory that the allocator keeps.
ALLOWANCE_MB = 16
GROWTH = "grown by MB"  # resident memory, at most, above what it was after a warm-up
COUNTED = "counted MB"  # by the producer itself, at most
STOPPED_SECONDS, RUNNING_SECONDS = 0.19, 0.01


def case(record_size: int) -> str:
    return f"slow broker, {size_text(record_size)}"


def case_count(_: Bench) -> int:
    return len(RECORD_SIZES)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    broker = bench.brokers.get(KLAMM)
    if broker is None:
        return
    for record_size in RECORD_SIZES:
        yield Comparison(
            case(record_size),
            {client: functools.partial(measure, bench, broker, record_size, client) for client in CLIENTS},
            rounds=bench.long_rounds,
        )


def measure(bench: Bench, broker: Broker, record_size: int, client: str) -> Figures:
    seconds = 1.0 if bench.is_quick else 6.0
    arguments = {"record_size": record_size, "seconds": seconds, "buffer_bytes": BUFFER_BYTES}
    with topic(broker, PARTITION_COUNT) as name:
        worker = start_worker(WORKERS[client], "feed", {**addressed(broker, name), **arguments})
        try:
            wait_until_ready(worker)
            before_mb = processes.resident_mb(worker.pid)
            most_mb = watch_while_slow(broker, worker.pid, seconds)
            done = finish_worker(worker, WORKER_TIMEOUT_SECONDS)
        finally:
            worker.kill()
            worker.wait()
    figures = {GROWTH: most_mb - before_mb, "sent records/s": done["records"] / seconds}
    if done["most_counted_mb"]:
        figures[COUNTED] = done["most_counted_mb"]
    return figures


def watch_while_slow(broker: Broker, client_pid: int, seconds: float) -> float:
    """Stops the broker for most of the time; returns the client's highest resident memory."""
    most_mb, deadline = 0.0, time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            most_mb = max(most_mb, processes.resident_mb(client_pid))
            os.kill(broker.pid, signal.SIGCONT)
            time.sleep(RUNNING_SECONDS)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    return most_mb
