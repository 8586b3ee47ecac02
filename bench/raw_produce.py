"""Produce over one raw socket: batches of 1 to 8,000 records, one at a time and pipelined, acks 1.

MB are 10^6 bytes of batches. Small requests have the bare ping-pong of the same bytes beside them, batches of
about 1 MB the loopback copy that is appended to a file.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from bench import load, machine, processes, wire
from bench.peers import MACHINE, Broker, topic
from bench.runner import Bench, Comparison, Figures, Measure

SECTION = "produce"
PING_PONG_UP_TO_BYTES = 32 * 1024  # above it a copy is the better limit
WARM_UP_DEPTH = 16
CORES_USED = "broker cores used"


class Shape(NamedTuple):
    record_count: int
    value_size: int
    depth: int

    @property
    def case(self) -> str:
        size = "1 KB" if self.value_size == 1024 else f"{self.value_size} B"
        manner = "one at a time" if self.depth == 1 else f"{self.depth} deep"
        return f"{self.record_count:,} × {size}, {manner}"


SHAPES = [
    *(Shape(1, 100, depth) for depth in (1, 16, 64)),
    *(Shape(1, 1024, depth) for depth in (1, 16, 64)),
    *(Shape(16, 1024, depth) for depth in (1, 16)),
    *(Shape(100, 100, depth) for depth in (1, 16)),
    *(Shape(1000, 100, depth) for depth in (1, 16)),
    *(Shape(1000, 1024, depth) for depth in (1, 2, 4)),
    *(Shape(8000, 100, depth) for depth in (1, 2, 4)),
]


@functools.cache
def batch_of(record_count: int, value_size: int) -> bytes:
    return wire.build_batch(record_count, value_size)


def case_count(_: Bench) -> int:
    return len(SHAPES)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for shape in SHAPES:
        measures: dict[str, Measure] = {
            name: functools.partial(measure_broker, bench, broker, shape)
            for name, broker in bench.brokers.items()
        }
        if shape.record_count * shape.value_size <= PING_PONG_UP_TO_BYTES:
            measures[MACHINE] = functools.partial(measure_ping_pong, bench, shape)
        elif shape.record_count * shape.value_size > 500_000:
            measures[MACHINE] = functools.partial(machine.copy_to_file, bench)
        yield Comparison(shape.case, measures, writes_bytes=bench.writes_bytes)


def measure_broker(bench: Bench, broker: Broker, shape: Shape) -> Figures:
    with topic(broker) as name:
        exchange = wire.produce_exchange(name, batch_of(*shape[:2]), shape.record_count)
        return drive(bench, broker.port, exchange, shape.depth, broker_pid=broker.pid)


def measure_ping_pong(bench: Bench, shape: Shape) -> Figures:
    exchange = wire.produce_exchange("bench-000000", batch_of(*shape[:2]), shape.record_count)
    with machine.ping_pong_server(exchange) as (port, bare):
        return drive(bench, port, bare, shape.depth)


def drive(
    bench: Bench,
    port: int,
    exchange: wire.ProduceExchange,
    depth: int,
    partition_count: int = 1,
    broker_pid: int | None = None,
) -> Figures:
    """One connection, one warm-up, one measurement."""

    def run(budget: load.Budget) -> load.Load:
        if depth == 1:
            return load.produce_one_at_a_time(connection, exchange, budget)
        return load.produce_pipelined(connection, exchange, depth, budget, partition_count)

    with load.placed_connection(port) as connection:
        run(bench.warm_up_budget)
        cpu_before = processes.cpu_seconds(broker_pid) if broker_pid else 0.0
        done = run(bench.budget)
        figures = figures_of(done, exchange)
        if broker_pid:
            figures[CORES_USED] = (processes.cpu_seconds(broker_pid) - cpu_before) / done.seconds
    return figures


def figures_of(done: load.Load, exchange: wire.ProduceExchange) -> Figures:
    figures: Figures = {"requests/s": done.requests / done.seconds}
    if exchange.record_count > 1:
        figures["records/s"] = done.requests * exchange.record_count / done.seconds
        figures["MB/s"] = done.requests * exchange.batch_size / done.seconds / 1e6
    if done.round_trips_us:
        figures["round trip p50 µs"] = statistics.median(done.round_trips_us)
    return figures


def warm_up(bench: Bench, broker: Broker) -> None:
    """Load that is not counted: a JVM compiles what is hot, its first seconds say nothing about the rest."""
    budget = load.Budget(0.5 if bench.is_quick else 5.0, 4 * bench.budget.max_bytes)
    for record_count, value_size in ((1, 100), (100, 100), (1000, 1024)):
        with topic(broker) as name, load.placed_connection(broker.port) as connection:
            exchange = wire.produce_exchange(name, batch_of(record_count, value_size), record_count)
            load.produce_pipelined(connection, exchange, WARM_UP_DEPTH, budget)
