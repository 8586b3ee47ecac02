"""librdkafka (confluent-kafka) as a user runs it from Python: produce and consume at 100 B and 1 KB.

Three partitions, acks 1, linger 5 ms. Each measurement is a process of its own, on any core; the Python loop
around the library is part of what a user gets, and the same on both sides.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bench.java_tools import size_text
from bench.peers import Broker, topic
from bench.runner import Bench, Comparison, Figures
from bench.workers import run_worker

SECTION = "librdkafka"
PARTITION_COUNT = 3
RECORD_COUNTS = {100: 2_000_000, 1024: 600_000}
QUICK_DIVISOR = 5
WORKER = "bench.librdkafka_worker"


def case_count(_: Bench) -> int:
    return len(RECORD_COUNTS)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for record_size, record_count in RECORD_COUNTS.items():
        count = record_count // QUICK_DIVISOR if bench.is_quick else record_count
        yield Comparison(
            f"{size_text(record_size)} records",
            {
                name: functools.partial(measure, broker, record_size, count)
                for name, broker in bench.brokers.items()
            },
            rounds=bench.long_rounds,
            writes_bytes=count * (record_size + 20),
        )


def measure(broker: Broker, record_size: int, record_count: int) -> Figures:
    with topic(broker, PARTITION_COUNT) as name:
        common = {"bootstrap": f"127.0.0.1:{broker.port}", "topic": name, "record_count": record_count}
        produce_seconds = run_worker(WORKER, "produce", {**common, "record_size": record_size})["seconds"]
        consume_seconds = run_worker(WORKER, "consume", {**common, "partition_count": PARTITION_COUNT})[
            "seconds"
        ]
    return {
        "produced records/s": record_count / produce_seconds,
        "produced MB/s": record_count * record_size / produce_seconds / 1e6,
        "consumed records/s": record_count / consume_seconds,
        "consumed MB/s": record_count * record_size / consume_seconds / 1e6,
    }
