"""Three brokers: acks=all, a leader that is killed, a follower that returns, many partitions.

Topics have three replicas and min.insync.replicas=2. Both clusters run all the time and take turns. The cases
about many idle partitions and about ZooKeeper start clusters of their own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping

from tests.peers.kafka_jars import PeerMissing
from tests.peers.zookeeper import ZooKeeper, find_zookeeper_jar

from bench import java_tools, processes
from bench.cluster import brokers, catch_up
from bench.cluster.brokers import IDS, Cluster, KafkaCluster, KlammCluster, partitions_of, topic, wait_for
from bench.cluster.leading import take_a_record_each
from bench.java_tools import size_text
from bench.peers import KAFKA, KLAMM, MACHINE
from bench.runner import Bench, Comparison, Figures, Measure
from bench.workers import finish_worker, run_worker, start_worker, wait_until_ready

SECTION = "cluster"
WORKER = "bench.cluster.worker"
KINDS: dict[str, type[Cluster]] = {KLAMM: KlammCluster, KAFKA: KafkaCluster}

PARTITION_COUNT = 6
JAVA_RECORDS = {100: 1_500_000, 1024: 250_000}
QUICK_DIVISOR = 5
SENT_SECONDS = 4.0
MOST_SENT_BYTES = 400_000_000
CLIENTS = {"klamm": "our client", "confluent": "librdkafka"}
JAVA = "Java client"

PACE = 1_000
SKIPPED_SECONDS = 1.0
GAP_RATE = 200
BEFORE_KILL_SECONDS = 1.0
AFTER_ELECTION_SECONDS = 2.5
ZOOKEEPER_SESSION_MS = 6_000

CREATED_PARTITIONS = 1_000
IDLE_PARTITIONS = 4_000
SETTLE_SECONDS = 5.0

PACE_CASE = f"acks=all at {PACE:,} records/s, linger 0 ms"
GAP_CASE = "kill -9 of a leader"
ZOOKEEPER_GAP_CASE = f"kill -9 of a leader, ZooKeeper with sessions of {ZOOKEEPER_SESSION_MS / 1000:g} s"
CREATED_CASE = f"{CREATED_PARTITIONS:,} partitions × 3 created"
IDLE_CASE = f"{IDLE_PARTITIONS:,} partitions × 3, idle"
CREATED_METRIC, USED_METRIC = "created and led s", "until each took a record s"
IDLE_METRIC = "CPU % of a core, busiest broker"


def send_case(record_size: int, client: str) -> str:
    return f"acks=all, {size_text(record_size)}, {client}"


def gap_metric(client: str) -> str:
    return f"longest gap s, {client}"


def case_count(_: Bench) -> int:
    return len(JAVA_RECORDS) * (1 + len(CLIENTS)) + 6


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with contextlib.ExitStack() as stack:
        clusters: dict[str, Cluster] = {}
        for kind in bench.kinds:
            bench.on_step(f"starting three brokers of {kind.name}")
            make = functools.partial(KINDS[kind.name], bench.work_dir)
            cluster = clusters[kind.name] = stack.enter_context(brokers.started(make))
            warm_up(bench, cluster)
        yield from compare_sending(bench, clusters)
        yield compare(PACE_CASE, clusters, functools.partial(measure_pace, bench), rounds=bench.long_rounds)
        yield compare(CREATED_CASE, clusters, measure_creation, rounds=bench.long_rounds)
        victims = {name: itertools.cycle(IDS) for name in clusters}
        yield compare(
            GAP_CASE,
            clusters,
            lambda cluster: measure_gap(cluster, next(victims[cluster.name])),
            rounds=1 if bench.is_quick else len(IDS),
        )
        yield catch_up_comparison(bench, clusters)
    yield Comparison(IDLE_CASE, {KLAMM: functools.partial(measure_idle, bench)}, rounds=1)
    yield from compare_on_zookeeper(bench)


def compare(
    case: str,
    clusters: Mapping[str, Cluster],
    measure: Callable[[Cluster], Figures],
    rounds: int,
    writes_bytes: int = 0,
) -> Comparison:
    measures = {name: functools.partial(measure, cluster) for name, cluster in clusters.items()}
    return Comparison(case, measures, rounds, writes_bytes)


def warm_up(bench: Bench, cluster: Cluster) -> None:
    """Load that is not counted: a JVM compiles what is hot."""
    with topic(cluster, PARTITION_COUNT) as name:
        for record_size, record_count in JAVA_RECORDS.items():
            count = record_count // (2 * QUICK_DIVISOR if bench.is_quick else 2)
            java_tools.produce(cluster.port, name, record_size, count, acks="all")


# ---- throughput and latency


def compare_sending(bench: Bench, clusters: Mapping[str, Cluster]) -> Iterator[Comparison]:
    for record_size, full_count in JAVA_RECORDS.items():
        count = full_count // QUICK_DIVISOR if bench.is_quick else full_count
        yield compare(
            send_case(record_size, JAVA),
            clusters,
            functools.partial(measure_java, record_size, count),
            bench.long_rounds,
            writes_bytes=3 * count * (record_size + 20),
        )
        for client, client_name in CLIENTS.items():
            yield compare(
                send_case(record_size, client_name),
                clusters,
                functools.partial(measure_client, bench, record_size, client),
                bench.long_rounds,
                writes_bytes=MOST_SENT_BYTES,
            )


def measure_java(record_size: int, count: int, cluster: Cluster) -> Figures:
    with topic(cluster, PARTITION_COUNT) as name, broker_cpu(cluster) as cpu:
        done = java_tools.produce(cluster.port, name, record_size, count, acks="all")
    return {
        "records/s": done["produced records/s"],
        "MB/s": done["produced MB/s"],
        "produce latency p99 ms": done["produce latency p99 ms"],
        "CPU s/GB of all brokers": cpu() / (count * record_size / 1e9),
    }


def measure_client(bench: Bench, record_size: int, client: str, cluster: Cluster) -> Figures:
    seconds = SENT_SECONDS / QUICK_DIVISOR if bench.is_quick else SENT_SECONDS
    with topic(cluster, PARTITION_COUNT) as name:
        done = run_worker(
            WORKER,
            "send",
            {
                **addressed(client, cluster, name),
                "partition_count": PARTITION_COUNT,
                "record_size": record_size,
                "seconds": seconds,
                "max_records": MOST_SENT_BYTES // record_size,
            },
        )
    rate = done["records"] / done["seconds"]
    return {"records/s": rate, "MB/s": rate * record_size / 1e6}


def measure_pace(bench: Bench, cluster: Cluster) -> Figures:
    seconds = 2.0 if bench.is_quick else 6.0
    figures: Figures = {}
    for client, client_name in CLIENTS.items():
        with topic(cluster, 1) as name:
            paced = {"rate": PACE, "seconds": seconds, "skipped_seconds": SKIPPED_SECONDS}
            done = run_worker(WORKER, "pace", {**addressed(client, cluster, name), **paced})
        figures[f"p50 ms, {client_name}"] = done["p50_ms"]
        figures[f"p99 ms, {client_name}"] = done["p99_ms"]
        figures[f"acknowledged records/s, {client_name}"] = done["acknowledged_per_second"]
    return figures


def addressed(client: str, cluster: Cluster, topic_name: str) -> dict[str, object]:
    return {"client": client, "bootstrap": cluster.bootstrap, "topic": topic_name}


@contextlib.contextmanager
def broker_cpu(cluster: Cluster) -> Iterator[Callable[[], float]]:
    """CPU seconds of all brokers from the beginning of the context to its end."""
    before = total = sum(processes.cpu_seconds(cluster.pid(broker_id)) for broker_id in cluster.running)
    yield lambda: total - before
    total = sum(processes.cpu_seconds(cluster.pid(broker_id)) for broker_id in cluster.running)


# ---- a leader that is killed


def measure_gap(cluster: Cluster, victim: int) -> Figures:
    """Broker `victim` leads the topic's only partition, and is killed under the load of two producers."""
    others = [broker_id for broker_id in IDS if broker_id != victim]
    with topic(cluster, 1, assignment=[[victim, *others]]) as name:
        workers = {
            client: start_worker(WORKER, "watch_gap", {**addressed(client, cluster, name), "rate": GAP_RATE})
            for client in CLIENTS
        }
        try:
            for worker in workers.values():
                wait_until_ready(worker)
            time.sleep(BEFORE_KILL_SECONDS)
            cluster.kill(victim)
            killed = time.perf_counter()
            wait_for(cluster, name, others[0], lambda found: found[0].leader in others)
            elected_seconds = time.perf_counter() - killed
            time.sleep(AFTER_ELECTION_SECONDS)
            gaps = {client: finish_worker(worker, 60.0) for client, worker in workers.items()}
        finally:
            for worker in workers.values():
                worker.kill()
            if victim not in cluster.running:
                cluster.launch(victim)
                cluster.wait_for_answer(victim)
        brokers.wait_until_in_sync(cluster, name, 1)
    return {
        "until another leads s": elected_seconds,
        **{gap_metric(CLIENTS[client]): gap["gap_seconds"] for client, gap in gaps.items()},
    }


def compare_on_zookeeper(bench: Bench) -> Iterator[Comparison]:
    """Klamm alone: no broker of Apache Kafka 4 uses ZooKeeper."""
    try:
        find_zookeeper_jar()
    except PeerMissing as missing:
        bench.note_failure(SECTION, ZOOKEEPER_GAP_CASE, KLAMM, missing)
        return
    with ZooKeeper() as zookeeper:
        settings = {"broker.session.timeout.ms": str(ZOOKEEPER_SESSION_MS)}
        url = f"zookeeper://{zookeeper.hosts}/bench"
        with brokers.started(lambda: KlammCluster(bench.work_dir, url, settings)) as cluster:
            victims = itertools.cycle(IDS)
            yield Comparison(
                ZOOKEEPER_GAP_CASE,
                {KLAMM: lambda: measure_gap(cluster, next(victims))},
                rounds=1 if bench.is_quick else bench.long_rounds,
            )


# ---- a follower that returns


def catch_up_comparison(bench: Bench, clusters: Mapping[str, Cluster]) -> Comparison:
    size = catch_up.QUICK_BYTES if bench.is_quick else catch_up.BYTES
    measures: dict[str, Measure] = {
        name: functools.partial(catch_up.measure, cluster, size) for name, cluster in clusters.items()
    }
    measures[MACHINE] = functools.partial(catch_up.measure_copy, clusters[KLAMM], size)
    return Comparison(catch_up.CASE, measures, 1 if bench.is_quick else 5, writes_bytes=3 * size)


# ---- many partitions


def measure_creation(cluster: Cluster) -> Figures:
    name, count = f"many-{time.monotonic_ns()}", CREATED_PARTITIONS
    started = time.perf_counter()
    brokers.create_topic(cluster, name, count)
    try:
        brokers.wait_until_in_sync(cluster, name, count)
        created_seconds = time.perf_counter() - started
        take_a_record_each(cluster, name, partitions_of(cluster, name))
        used_seconds = time.perf_counter() - started
    finally:
        brokers.delete_topic(cluster, name)
    return {CREATED_METRIC: created_seconds, USED_METRIC: used_seconds}


def measure_idle(bench: Bench) -> Figures:
    """Klamm alone: a request for as many partitions timed out at three nodes of Apache Kafka on two cores."""
    with brokers.started(lambda: KlammCluster(bench.work_dir)) as cluster:
        started = time.perf_counter()
        brokers.create_topic(cluster, "idle", IDLE_PARTITIONS)
        brokers.wait_until_in_sync(cluster, "idle", IDLE_PARTITIONS)
        created_seconds = time.perf_counter() - started
        take_a_record_each(cluster, "idle", partitions_of(cluster, "idle"))
        time.sleep(SETTLE_SECONDS)
        seconds = 3.0 if bench.is_quick else 10.0
        before = {broker_id: processes.cpu_seconds(cluster.pid(broker_id)) for broker_id in IDS}
        time.sleep(seconds)
        used = [processes.cpu_seconds(cluster.pid(broker_id)) - before[broker_id] for broker_id in IDS]
        return {
            IDLE_METRIC: 100 * max(used) / seconds,
            "resident MB, largest broker": max(processes.resident_mb(cluster.pid(each)) for each in IDS),
            CREATED_METRIC: created_seconds,
        }
