"""The aims, as rows: a figure of the broker (on one core), of a cluster, of the client or of Spark
pipelines, what the figure is compared with, and a bound.

`evaluate` takes the medians of the rounds. An aim whose figures were not measured is neither reached nor
missed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bench import client_memory, client_round_trip, partitions, python_clients
from bench.cluster import catch_up
from bench.cluster import section as cluster
from bench.java_tools import size_text
from bench.peers import KAFKA, KLAMM, MACHINE
from bench.python_clients import AIO, AIOKAFKA, COLUMNS, CONFLUENT, PLAIN
from bench.runner import Results
from bench.spark import section as spark
from bench.spark import tables


class Compared(enum.Enum):
    """With what an aim compares our figure."""

    TO_KAFKA = "× Apache Kafka"
    TO_KAFKA_CLUSTER = "× three brokers of Apache Kafka"
    TO_MACHINE = "× machine"
    OVER_MACHINE = "more than the machine"
    TO_AIOKAFKA = "× aiokafka"
    TO_CONFLUENT = "× confluent-kafka"
    TO_OFFICIAL = "× the official connector"
    ALONE = ""

    @property
    def reference(self) -> str | None:
        """The contestant whose figure ours is divided by, or from which it is subtracted."""
        return _REFERENCES.get(self)


_REFERENCES = {
    Compared.TO_KAFKA: KAFKA,
    Compared.TO_KAFKA_CLUSTER: KAFKA,
    Compared.TO_MACHINE: MACHINE,
    Compared.OVER_MACHINE: MACHINE,
    Compared.TO_AIOKAFKA: AIOKAFKA,
    Compared.TO_CONFLUENT: CONFLUENT,
    Compared.TO_OFFICIAL: spark.OFFICIAL,
}


class Aim(NamedTuple):
    text: str
    section: str
    case: str
    metric: str
    compared: Compared
    at_least: float | None = None
    at_most: float | None = None
    contestant: str = KLAMM


class Evaluation(NamedTuple):
    """What was measured for an aim, and whether that reaches it.

    Both are None if nothing was measured; a row without a bound is neither reached nor missed.
    """

    measured: float | None
    is_reached: bool | None


ONE_MB, BIG = "1,000 × 1 KB, 4 deep", "8,000 × 100 B, 4 deep"
RATIO, LIMIT, OVER, ALONE = Compared.TO_KAFKA, Compared.TO_MACHINE, Compared.OVER_MACHINE, Compared.ALONE
HUNDRED = "100 connections, 1 × 100 B, one at a time each"
IDLE_BESIDE, IDLE_ALONE = "idle beside the load, 4,000 partitions", "idle broker, 4,000 partitions"
RECEIVED = "received records/s"

BROKER_AIMS = (
    Aim(
        "produce requests of 100 B, 16 deep",
        "produce",
        "1 × 100 B, 16 deep",
        "requests/s",
        RATIO,
        5,
    ),
    Aim("produce requests of 100 B, 64 deep", "produce", "1 × 100 B, 64 deep", "requests/s", RATIO, 5),
    Aim("produce requests of 1 KB, 16 deep", "produce", "1 × 1 KB, 16 deep", "requests/s", RATIO, 5),
    Aim("100 connections, one request at a time each", "connections", HUNDRED, "requests/s", RATIO, 1),
    Aim(
        "one request at a time: p50 µs above a bare ping-pong of the same bytes",
        *("produce", "1 × 100 B, one at a time", "round trip p50 µs", OVER, None, 40),
    ),
    Aim("produce batches of 16 KB, 16 deep", "produce", "16 × 1 KB, 16 deep", "MB/s", RATIO, 2),
    Aim("produce batches of 1 MB, 4 deep", "produce", ONE_MB, "MB/s", RATIO, 1.5),
    Aim(
        "produce batches of 1 MB, against a loopback copy into a file", "produce", ONE_MB, "MB/s", LIMIT, 0.6
    ),
    Aim("cached fetch, 64 KB answers", "fetch", "cached, 64 KB answers", "MB/s", RATIO, 1),
    Aim("live records to 32 consumers", "fan-out", "live, 32 consumers", "deliveries/s", RATIO, 1),
    Aim("cached fetch, 1 MB answers", "fetch", "cached, 1 MB answers", "MB/s", RATIO, 0.95),
    Aim("cached fetch, 4 MB answers", "fetch", "cached, 4 MB answers", "MB/s", RATIO, 1),
    *(
        Aim(
            f"{tool}, {size}",
            *("Java client", f"perf tools, {size} records", f"{verb} records/s", RATIO, bound),
        )
        for tool, verb, bound in (
            ("ProducerPerformance", "produced", 1.2),
            ("ConsumerPerformance", "consumed", 1),
        )
        for size in ("100 B", "1 KB")
    ),
    Aim("produce batches of 8,000 × 100 B, 4 deep", "produce", BIG, "records/s", RATIO, 1.5),
    Aim("produce batches of 8,000 × 100 B, records/s", "produce", BIG, "records/s", ALONE, 2_000_000),
    Aim(
        "produce to consume at 1,000/s, p99",
        "latency",
        "1,000 records/s, linger 0 ms",
        "p99 ms",
        RATIO,
        None,
        0.5,
    ),
    Aim(
        "produce to consume at 5,000/s, p99 ms",
        "latency",
        "5,000 records/s, linger 0 ms",
        "p99 ms",
        ALONE,
        None,
        5,
    ),
    Aim(
        "produce to consume at 5,000/s, received records/s",
        "latency",
        "5,000 records/s, linger 0 ms",
        RECEIVED,
        ALONE,
        4_750,
    ),
    Aim(
        "time from start to first answer",
        "start",
        "start, then idle",
        "start to first answer s",
        RATIO,
        None,
        0.1,
    ),
    Aim(
        "time from start to first answer, s",
        "start",
        "start, then idle",
        "start to first answer s",
        ALONE,
        None,
        0.3,
    ),
    Aim("resident memory, idle", "start", "start, then idle", "resident MB", RATIO, None, 0.15),
    Aim("resident memory, idle, MB", "start", "start, then idle", "resident MB", ALONE, None, 60),
    *(
        Aim(
            f"throughput kept beside 4,000 idle partitions, {load}, %",
            *("partitions", IDLE_BESIDE, f"{load} share kept %", ALONE, 80),
        )
        for load in ("1 × 100 B", "100 × 100 B")
    ),
    Aim(
        "CPU of 4,000 idle partitions, % of a core",
        "partitions",
        IDLE_ALONE,
        "CPU % of a core",
        ALONE,
        None,
        5,
    ),
    *(
        Aim(f"10,000 partitions, {metric}", "partitions", partitions.VERY_MANY_CASE, metric, ALONE, None, 5)
        for metric in (partitions.CREATED, partitions.STOPPED, partitions.STARTED)
    ),
    Aim(
        f"10,000 partitions, {partitions.VERY_MANY_MB}",
        *("partitions", partitions.VERY_MANY_CASE, partitions.VERY_MANY_MB, ALONE, None, 100),
    ),
)


def _sending(text: str, size: int, compared: Compared, at_least: float, contestant: str) -> Aim:
    case = python_clients.case("send", size, KLAMM)
    return Aim(text, python_clients.SECTION, case, "records/s", compared, at_least, None, contestant)


def _polling(text: str, size: int, compared: Compared, at_least: float, contestant: str) -> Aim:
    case = python_clients.case("poll", size, KLAMM)
    return Aim(text, python_clients.SECTION, case, "records/s", compared, at_least, None, contestant)


def _round_trip(text: str, metric: str, contestant: str) -> Aim:
    where = (client_round_trip.SECTION, client_round_trip.CASE, metric)
    return Aim(text, *where, Compared.TO_CONFLUENT, None, 1, contestant)


def _memory(text: str, size: int, metric: str, at_most: float, contestant: str) -> Aim:
    where = (client_memory.SECTION, client_memory.case(size), metric)
    return Aim(text, *where, ALONE, None, at_most, contestant)


FACES = (AIO, PLAIN)
SIZES = python_clients.RECORD_SIZES
BUFFER_MB = round(client_memory.BUFFER_BYTES / 1e6, 1)

CLIENT_AIMS = (
    *(
        _sending(f"{face}: send, {size_text(size)}", size, Compared.TO_AIOKAFKA, 2, face)
        for face in FACES
        for size in SIZES
    ),
    *(_sending(f"send_arrow, {size_text(size)}", size, Compared.TO_CONFLUENT, 2, COLUMNS) for size in SIZES),
    *(
        _polling(f"{face}: poll, {size_text(size)}", size, Compared.TO_AIOKAFKA, 1, face)
        for face in FACES
        for size in SIZES
    ),
    _polling("poll_arrow, 100 B, records/s", 100, ALONE, 5_000_000, COLUMNS),
    *(
        _round_trip(f"{face}: one record, {metric}", metric, face)
        for face in FACES
        for metric in client_round_trip.METRICS.values()
        if "p99" in metric
    ),
    *(
        aim
        for face in FACES
        for size in client_memory.RECORD_SIZES
        for aim in (
            _memory(
                f"{face}: memory used while the broker is slow, {size_text(size)} records, MB",
                *(size, client_memory.GROWTH, BUFFER_MB + client_memory.ALLOWANCE_MB, face),
            ),
            _memory(
                f"{face}: the same, counted by the producer, {size_text(size)} records, MB",
                size,
                client_memory.COUNTED,
                BUFFER_MB,
                face,
            ),
        )
    ),
)


def _rows(text: str, case: str, at_least: float) -> Aim:
    return Aim(text, spark.SECTION, case, "rows/s", Compared.TO_OFFICIAL, at_least)


PIPELINE_AIMS = (
    Aim(
        "decode on one core, 100 B, records/s",
        spark.SECTION,
        spark.DECODE_CASE,
        "records/s",
        ALONE,
        5_000_000,
    ),
    *(
        _rows(f"topic to {spark.SINKS[sink]}, {size_text(size)}", spark.read_case(sink, size), at_least)
        for sink, size, at_least in (
            ("noop", 100, 2),
            ("noop", 1024, 1.8),
            ("parquet", 100, 1.5),
            ("parquet", 1024, 2),
        )
    ),
    *(_rows(f"topic to a table, {size_text(size)}", spark.table_case(size), 2) for size in spark.ROWS),
    *(_rows(f"rows to a topic, {size_text(size)}", spark.write_case(size), 2) for size in spark.ROWS),
    _rows("topic to Parquet, 1 KB, both on Apache Kafka", spark.read_case("parquet", 1024, KAFKA), 2),
    _rows("rows to a topic, 1 KB, both on Apache Kafka", spark.write_case(1024, KAFKA), 2),
    Aim(
        "small streaming batch, one partition, ms",
        *(spark.SECTION, spark.trigger_case(1, spark.TUNED), spark.TRIGGER_METRICS["batch_ms"]),
        *(ALONE, None, 120),
    ),
    Aim(
        "small streaming batch, six partitions, ms",
        *(spark.SECTION, spark.trigger_case(spark.PARTITION_COUNT, spark.TUNED)),
        *(spark.TRIGGER_METRICS["batch_ms"], ALONE, None, 120),
    ),
    Aim(
        "batch of 1,000 rows, decoded and checked, from trigger to commit, ms",
        *(tables.SECTION, tables.batch_case(1), tables.BATCH_METRICS["batch_ms"], ALONE, None, 150),
    ),
    *(
        Aim(
            f"a table of 10,000 commits: {metric}",
            tables.SECTION,
            tables.COMMITS_CASE,
            metric,
            ALONE,
            None,
            2,
        )
        for metric in (tables.PLAN_RATIO, tables.COMMIT_RATIO)
    ),
    Aim("merging small files, MB/s", tables.SECTION, tables.MERGE_CASE, "MB/s", ALONE, 100),
    Aim("log lines end to end, MB/s", spark.SECTION, spark.LOG_CASE, spark.END_TO_END, ALONE, 200),
)


def _sending_to_three(record_size: int, client: str, at_least: float | None) -> Aim:
    case = cluster.send_case(record_size, client)
    return Aim(case, cluster.SECTION, case, "records/s", Compared.TO_KAFKA_CLUSTER, at_least)


CLUSTER_AIMS = (
    *(
        _sending_to_three(size, client, 1.5)
        for client in (cluster.JAVA, cluster.CLIENTS["klamm"])
        for size in cluster.JAVA_RECORDS
    ),
    *(
        Aim(
            f"acks=all at 1,000/s, p99, {client}",
            *(cluster.SECTION, cluster.PACE_CASE, f"p99 ms, {client}", Compared.TO_KAFKA_CLUSTER, None, 0.5),
        )
        for client in cluster.CLIENTS.values()
    ),
    *(
        Aim(
            f"kill -9 of a leader, longest gap s, {client}{where}",
            *(cluster.SECTION, case, cluster.gap_metric(client), ALONE, None, at_most),
        )
        for case, where, at_most in (
            (cluster.GAP_CASE, "", 1),
            (cluster.ZOOKEEPER_GAP_CASE, ", ZooKeeper", cluster.ZOOKEEPER_SESSION_MS / 1000 + 1),
        )
        for client in cluster.CLIENTS.values()
    ),
    Aim(
        "1,000 partitions × 3 created and led, s",
        *(cluster.SECTION, cluster.CREATED_CASE, cluster.CREATED_METRIC, ALONE, None, 2),
    ),
    Aim(
        "catch-up of a follower, against a loopback copy into a file",
        *(cluster.SECTION, catch_up.CASE, "MB/s", LIMIT, 0.8),
    ),
    Aim(
        "CPU of 4,000 idle partitions × 3, % of a core, busiest broker",
        *(cluster.SECTION, cluster.IDLE_CASE, cluster.IDLE_METRIC, ALONE, None, 5),
    ),
)

AIMS = (*BROKER_AIMS, *CLUSTER_AIMS, *CLIENT_AIMS, *PIPELINE_AIMS)

SHOWN_WITHOUT_AIM = (
    *(_sending_to_three(size, cluster.CLIENTS["confluent"], None) for size in cluster.JAVA_RECORDS),
    *(
        Aim(
            f"{face}: {verb}, {size_text(size)}",
            *(python_clients.SECTION, python_clients.case(verb, size, KLAMM), "records/s"),
            *(Compared.TO_CONFLUENT, None, None, face),
        )
        for face in FACES
        for verb in ("send", "poll")
        for size in SIZES
    ),
)
"""Comparisons that the picture shows beside those of the aims. In most of them the other is faster."""


def evaluate(results: Results, aim: Aim) -> Evaluation:
    measured = _measured(results, aim)
    if measured is None or (aim.at_least is None and aim.at_most is None):
        return Evaluation(measured, None)
    is_reached = (aim.at_least is None or measured >= aim.at_least) and (
        aim.at_most is None or measured <= aim.at_most
    )
    return Evaluation(measured, is_reached)


def _measured(results: Results, aim: Aim) -> float | None:
    def median(contestant: str) -> float | None:
        return results.median(aim.section, aim.case, aim.metric, contestant)

    ours, reference = median(aim.contestant), aim.compared.reference
    if ours is None or reference is None:
        return ours
    other = median(reference)
    if other is None:
        return None
    return ours - other if aim.compared is Compared.OVER_MACHINE else ours / other
