"""One record at a time, linger 0: from the call that sends it to its acknowledgement, and to its consumer.

Producer and consumer live in one process, as in a service that answers over topics. The consumer's fetch
waits at the broker when a record is sent. Three partitions, acks 1, records of 100 B.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bench.peers import KLAMM, Broker, topic
from bench.python_clients import AIO, AIOKAFKA, CONFLUENT, KAFKA_PYTHON, PARTITION_COUNT, PLAIN, run_client
from bench.runner import Bench, Comparison, Figures

SECTION = "client round trip"
CASE = "100 B, one at a time"
CLIENTS = (CONFLUENT, AIOKAFKA, KAFKA_PYTHON, AIO, PLAIN)
RECORD_SIZE = 100
COUNT, QUICK_COUNT = 5_000, 300
METRICS = {
    "acknowledged_p50_us": "to ack p50 µs",
    "acknowledged_p99_us": "to ack p99 µs",
    "arrived_p50_us": "to consumer p50 µs",
    "arrived_p99_us": "to consumer p99 µs",
}


def case_count(_: Bench) -> int:
    return 1


def comparisons(bench: Bench) -> Iterator[Comparison]:
    broker = bench.brokers.get(KLAMM)
    if broker is not None:
        yield Comparison(
            CASE, {client: functools.partial(measure, bench, broker, client) for client in CLIENTS}
        )


def measure(bench: Bench, broker: Broker, client: str) -> Figures:
    arguments = {"record_size": RECORD_SIZE, "count": QUICK_COUNT if bench.is_quick else COUNT}
    with topic(broker, PARTITION_COUNT) as name:
        done = run_client(client, "round_trip", broker, name, arguments)
    return {metric: done[field] for field, metric in METRICS.items()}
