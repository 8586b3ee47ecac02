"""Python clients side by side on the same broker: send and poll, records a second and µs a record.

Three partitions, acks 1, linger 5 ms, batches of 64 KB (librdkafka and our columns make them of 1 MB by
default, and may), records of 100 B and 1 KB. Each measurement is a process of its own; the clients take turns
in every round. The records that are polled were written once. Klamm is the broker; if Apache Kafka runs as
well, the same is measured on it, in fewer rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bench import load, wire
from bench.client_workers import driving
from bench.java_tools import size_text
from bench.peers import KLAMM, Broker, topic
from bench.raw_produce import batch_of
from bench.runner import Bench, Comparison, Figures
from bench.workers import run_worker

SECTION = "Python clients"
CONFLUENT, AIOKAFKA, KAFKA_PYTHON = "confluent-kafka", "aiokafka", "kafka-python"
AIO, PLAIN, COLUMNS = "klamm.aio", "klamm", "klamm, columns"
WORKERS = {
    CONFLUENT: "bench.client_workers.confluent",
    AIOKAFKA: "bench.client_workers.aio_kafka",
    KAFKA_PYTHON: "bench.client_workers.kafka_python",
    AIO: "bench.client_workers.klamm_aio",
    PLAIN: "bench.client_workers.klamm_plain",
    COLUMNS: "bench.client_workers.klamm_columns",
}
CLIENTS = tuple(WORKERS)
PARTITION_COUNT = 3
RECORD_SIZES = (100, 1024)
MOST_SENT_BYTES = 640_000_000  # keeps dirty pages far from writeback throttling
TOPIC_BYTES = 480_000_000
FILL_DEPTH = 4
FILL_SECONDS = 120.0
RECORD_OVERHEAD_BYTES = 10  # lengths, offset and timestamp of a record in its batch
QUICK_DIVISOR = 10


def seconds(bench: Bench) -> float:
    return 0.4 if bench.is_quick else 2.0


def rounds(bench: Bench, broker: Broker) -> int:
    return bench.rounds if broker.name == KLAMM else bench.long_rounds


def case(verb: str, record_size: int, broker_name: str) -> str:
    beside = "" if broker_name == KLAMM else f", {broker_name} as the broker"
    return f"{verb}, {size_text(record_size)}{beside}"


def case_count(bench: Bench) -> int:
    return 2 * len(RECORD_SIZES) * len(bench.kinds)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for broker in bench.brokers.values():
        for record_size in RECORD_SIZES:
            yield compare_sending(bench, broker, record_size)
            with topic(broker, PARTITION_COUNT) as name:
                yield compare_polling(bench, broker, record_size, name)


def compare_sending(bench: Bench, broker: Broker, record_size: int) -> Comparison:
    most_bytes = MOST_SENT_BYTES // QUICK_DIVISOR if bench.is_quick else MOST_SENT_BYTES
    return Comparison(
        case("send", record_size, broker.name),
        {
            client: functools.partial(measure_sending, bench, broker, record_size, most_bytes, client)
            for client in CLIENTS
        },
        rounds=rounds(bench, broker),
        writes_bytes=most_bytes,
    )


def measure_sending(bench: Bench, broker: Broker, record_size: int, most_bytes: int, client: str) -> Figures:
    with topic(broker, PARTITION_COUNT) as name:
        most_records = most_bytes // (record_size + RECORD_OVERHEAD_BYTES)
        arguments = {"record_size": record_size, "seconds": seconds(bench), "max_records": most_records}
        return figures_of(run_client(client, "send", broker, name, arguments), record_size)


def compare_polling(bench: Bench, broker: Broker, record_size: int, name: str) -> Comparison:
    record_count = fill(broker, name, record_size, TOPIC_BYTES // (QUICK_DIVISOR if bench.is_quick else 1))
    return Comparison(
        case("poll", record_size, broker.name),
        {
            client: functools.partial(measure_polling, bench, broker, record_size, name, record_count, client)
            for client in CLIENTS
        },
        rounds=rounds(bench, broker),
    )


def measure_polling(
    bench: Bench, broker: Broker, record_size: int, name: str, record_count: int, client: str
) -> Figures:
    arguments = {"record_count": record_count, "seconds": seconds(bench)}
    return figures_of(run_client(client, "poll", broker, name, arguments), record_size)


def fill(broker: Broker, name: str, record_size: int, size: int) -> int:
    """Batches as large as the producers make them, over all partitions; how many records that are."""
    records_a_batch = driving.BATCH_BYTES // (record_size + RECORD_OVERHEAD_BYTES)
    exchange = wire.produce_exchange(name, batch_of(records_a_batch, record_size), records_a_batch)
    with load.placed_connection(broker.port) as connection:
        done = load.produce_pipelined(
            connection, exchange, FILL_DEPTH, load.Budget(FILL_SECONDS, size), PARTITION_COUNT
        )
    return done.requests * records_a_batch


def run_client(
    client: str, task: str, broker: Broker, topic_name: str, arguments: dict[str, object]
) -> dict[str, float]:
    return run_worker(WORKERS[client], task, {**addressed(broker, topic_name), **arguments})


def addressed(broker: Broker, topic_name: str) -> dict[str, object]:
    return {
        "bootstrap": f"127.0.0.1:{broker.port}",
        "topic": topic_name,
        "partition_count": PARTITION_COUNT,
    }


def figures_of(done: dict[str, float], record_size: int) -> Figures:
    """CPU is that of the whole client process, its threads included: what is left for the user's own work."""
    records, elapsed = done["records"], done["seconds"]
    return {
        "records/s": records / elapsed,
        "MB/s": records * record_size / elapsed / 1e6,
        "µs/record": elapsed / records * 1e6,
        "CPU µs/record": done["cpu_seconds"] / records * 1e6,
    }
