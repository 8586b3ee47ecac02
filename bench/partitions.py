"""1, 100, 1,000 and 4,000 partitions: what idle ones cost, and load that is spread over all of them.

For each broker two instances run side by side: one with a single topic, one that also holds N idle
partitions. The same load goes to one and the other in turn, so the cost of the idle ones is a ratio within
the same seconds. Then the load goes round all N partitions, one record a request. The CPU share of an idle
broker is taken over some seconds without any request.

Klamm alone is asked for 10,000 partitions: how long it takes to make them, to stop cleanly and to start.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

from bench import load, processes, wire
from bench.peers import KLAMM, Broker, BrokerFailed, KlammBroker, create_topic, running, topic
from bench.raw_produce import batch_of, drive, warm_up
from bench.runner import Bench, BrokerKind, Comparison, Figures

SECTION = "partitions"
COUNTS = (1, 100, 1_000, 4_000)
QUICK_COUNTS = (1, 4_000)
DEPTH = 16
LOADS = {"1 × 100 B": (1, 100), "100 × 100 B": (100, 100)}
SETTLE_SECONDS = 3.0
LOOK_SECONDS = 0.02
VERY_MANY = 10_000
VERY_MANY_CASE = f"{VERY_MANY:,} partitions on one broker"
CREATED, STOPPED, STARTED = "created s", "stopped cleanly s", "start to first answer s"
VERY_MANY_MB = "resident MB after the start"


def counts(bench: Bench) -> tuple[int, ...]:
    return QUICK_COUNTS if bench.is_quick else COUNTS


def case_count(bench: Bench) -> int:
    return 3 * len(counts(bench)) * len(bench.kinds) + 1


def case(count: int) -> str:
    return f"{count:,} partition{'s' if count > 1 else ''}"


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for kind in bench.kinds:
        try:
            yield from idle_comparisons(bench, kind)
            yield from spread_comparisons(bench, kind)
        except BrokerFailed as failure:
            bench.note_failure(SECTION, "set-up", kind.name, failure)
    yield Comparison(
        VERY_MANY_CASE,
        {KLAMM: functools.partial(measure_very_many, bench)},
        rounds=1 if bench.is_quick else 3,
    )


def idle_comparisons(bench: Bench, kind: BrokerKind) -> Iterator[Comparison]:
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(running(kind, bench.work_dir))
        crowded = stack.enter_context(running(kind, bench.work_dir))
        for broker in (alone, crowded):
            warm_up(bench, broker)
        held = 0
        for count in counts(bench):
            name = f"idle-{count}"
            create_topic(crowded, name, count - held)
            held = count
            yield Comparison(
                f"idle beside the load, {case(count)}",
                {kind.name: functools.partial(measure_beside, bench, alone, crowded)},
                rounds=bench.long_rounds,
                writes_bytes=bench.writes_bytes,
            )
            yield Comparison(
                f"idle broker, {case(count)}",
                {kind.name: functools.partial(measure_idle, bench, crowded)},
                rounds=1,
            )


def spread_comparisons(bench: Bench, kind: BrokerKind) -> Iterator[Comparison]:
    with running(kind, bench.work_dir) as broker:
        warm_up(bench, broker)
        for count in counts(bench):
            yield Comparison(
                f"load over {case(count)}, {DEPTH} deep",
                {kind.name: functools.partial(measure_spread, bench, broker, count)},
                rounds=bench.long_rounds,
            )


def measure_load(bench: Bench, broker: Broker, load_text: str) -> float:
    record_count, value_size = LOADS[load_text]
    with topic(broker) as name:
        exchange = wire.produce_exchange(name, batch_of(record_count, value_size), record_count)
        return drive(bench, broker.port, exchange, DEPTH)["requests/s"]


def measure_beside(bench: Bench, alone: Broker, crowded: Broker) -> Figures:
    figures: Figures = {}
    for load_text in LOADS:
        without, beside = (measure_load(bench, broker, load_text) for broker in (alone, crowded))
        figures[f"{load_text} requests/s"] = beside
        figures[f"{load_text} share kept %"] = 100 * beside / without
    return figures


def measure_idle(bench: Bench, broker: Broker) -> Figures:
    time.sleep(SETTLE_SECONDS)
    seconds = 2.0 if bench.is_quick else 6.0
    before = processes.cpu_seconds(broker.pid)
    time.sleep(seconds)
    return {
        "CPU % of a core": 100 * (processes.cpu_seconds(broker.pid) - before) / seconds,
        "resident MB": processes.resident_mb(broker.pid),
    }


def measure_spread(bench: Bench, broker: Broker, count: int) -> Figures:
    with topic(broker, count) as name:
        exchange = wire.produce_exchange(name, batch_of(1, 100), 1)
        once_each = load.Budget(60.0, max_bytes=count * len(exchange.request))
        with load.placed_connection(broker.port) as connection:
            load.produce_pipelined(connection, exchange, DEPTH, once_each, count)
        return drive(bench, broker.port, exchange, DEPTH, partition_count=count)


def measure_very_many(bench: Bench) -> Figures:
    broker = KlammBroker(bench.work_dir)
    try:
        clock = time.perf_counter
        started = clock()
        create_very_many(broker)
        created = clock()
        broker.stop_cleanly()
        stopped = clock()
        broker.start()
        time.sleep(SETTLE_SECONDS)
        return {
            CREATED: created - started,
            STOPPED: stopped - created,
            STARTED: broker.start_seconds,
            VERY_MANY_MB: processes.resident_mb(broker.pid),
        }
    finally:
        broker.stop()


def create_very_many(broker: Broker) -> None:
    """Returns when the broker names a leader of every partition."""
    name = "very-many"
    code = wire.topic_error(load.ask(broker.port, wire.create_topic_request(name, VERY_MANY, {})))
    if code != wire.NO_ERROR:
        raise BrokerFailed(f"{broker.name} answered error {code} to the creation of {name}")
    with load.connect(broker.port) as connection:
        while True:
            found = wire.read_metadata(load.exchange(connection, wire.metadata_request(name)))
            if len(found) == VERY_MANY and all(state.leader >= 0 for state in found):
                return
            time.sleep(LOOK_SECONDS)
