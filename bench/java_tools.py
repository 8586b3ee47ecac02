"""The Java client's own ProducerPerformance and ConsumerPerformance against both brokers.

Six partitions, acks 1, linger 5 ms, batches of 64 KB, records of 100 B and 1 KB. The consumer reads what the
producer has just written; its figures leave out the time to join a group, as the tool itself reports them.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator

from tests.peers.kafka_jars import find_java, find_kafka_jars

from bench.peers import Broker, topic
from bench.runner import Bench, Comparison, Figures

SECTION = "Java client"
PARTITION_COUNT = 6
RECORD_COUNTS = {100: 5_000_000, 1024: 1_000_000}
QUICK_DIVISOR = 5
TOOL_TIMEOUT_SECONDS = 180.0
BATCHING = ("linger.ms=5", "batch.size=65536")
_SENT = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).*, ([\d.]+) ms 99th", re.MULTILINE
)


def size_text(record_size: int) -> str:
    return "1 KB" if record_size == 1024 else f"{record_size} B"


def case(record_size: int) -> str:
    return f"perf tools, {size_text(record_size)} records"


def case_count(_: Bench) -> int:
    return len(RECORD_COUNTS)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for record_size, record_count in RECORD_COUNTS.items():
        count = record_count // QUICK_DIVISOR if bench.is_quick else record_count
        yield Comparison(
            case(record_size),
            {
                name: functools.partial(measure, broker, record_size, count)
                for name, broker in bench.brokers.items()
            },
            rounds=bench.long_rounds,
            writes_bytes=count * (record_size + 20),
        )


def measure(broker: Broker, record_size: int, record_count: int) -> Figures:
    with topic(broker, PARTITION_COUNT) as name:
        return produce(broker.port, name, record_size, record_count) | consume(broker, name, record_count)


def produce(port: int, topic_name: str, record_size: int, record_count: int, acks: str = "1") -> Figures:
    output = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic_name),
        *("--num-records", str(record_count), "--record-size", str(record_size), "--throughput", "-1"),
        *("--command-property", f"acks={acks}", *BATCHING),
    )
    reports = _SENT.findall(output)
    if not reports or int(reports[-1][0]) != record_count:
        raise RuntimeError(f"ProducerPerformance did not send {record_count} records: {output[-600:]}")
    _, records_a_second, _, p99_ms = reports[-1]
    return {
        "produced records/s": float(records_a_second),
        "produced MB/s": float(records_a_second) * record_size / 1e6,
        "produce latency p99 ms": float(p99_ms),
    }


def consume(broker: Broker, topic_name: str, record_count: int) -> Figures:
    output = run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{broker.port}", "--topic", topic_name),
        *("--num-records", str(record_count), "--group", f"{topic_name}-readers", "--hide-header"),
    )
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") >= 9]
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    if not rows or int(rows[-1][4]) < record_count:
        raise RuntimeError(f"ConsumerPerformance did not read {record_count} records: {output[-600:]}")
    mebibytes, records, fetch_ms = float(rows[-1][2]), int(rows[-1][4]), float(rows[-1][7])
    return {
        "consumed records/s": records / fetch_ms * 1000,
        "consumed MB/s": mebibytes * 1.048576 / fetch_ms * 1000,
    }


def run_tool(main_class: str, *arguments: str) -> str:
    """A tool of Kafka's as its script runs it: 512 MB of heap, on any core."""
    done = subprocess.run(
        [find_java(), "-Xmx512m", "-XX:+UseG1GC", "-cp", f"{find_kafka_jars()}/*", main_class, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{main_class} ended with {done.returncode}: {done.stdout[-600:]}")
    return done.stdout
