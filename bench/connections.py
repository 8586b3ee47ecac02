"""1, 10 and 100 connections, one small produce at a time on each, beside a bare ping-pong of the same."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from bench import load, machine, processes, wire
from bench.peers import MACHINE, Broker, topic
from bench.raw_produce import batch_of, figures_of
from bench.runner import Bench, Comparison, Figures

SECTION = "connections"
COUNTS = (1, 10, 100)
VALUE_BYTES = 100


def case(count: int) -> str:
    return f"{count} connection{'s' if count > 1 else ''}, 1 × 100 B, one at a time each"


def case_count(_: Bench) -> int:
    return len(COUNTS)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for count in COUNTS:
        yield Comparison(
            case(count),
            {
                **{
                    name: functools.partial(measure_broker, bench, broker, count)
                    for name, broker in bench.brokers.items()
                },
                MACHINE: functools.partial(measure_ping_pong, bench, count),
            },
        )


def measure_broker(bench: Bench, broker: Broker, count: int) -> Figures:
    with topic(broker) as name:
        return drive(bench, broker.port, wire.produce_exchange(name, batch_of(1, VALUE_BYTES), 1), count)


def measure_ping_pong(bench: Bench, count: int) -> Figures:
    exchange = wire.produce_exchange("bench-000000", batch_of(1, VALUE_BYTES), 1)
    with machine.ping_pong_server(exchange) as (port, bare):
        return drive(bench, port, bare, count)


def drive(bench: Bench, port: int, exchange: wire.ProduceExchange, count: int) -> Figures:
    with processes.on_load_core(), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(load.connect(port)) for _ in range(count)]
        load.produce_over_connections(connections, exchange, bench.warm_up_budget)
        return figures_of(load.produce_over_connections(connections, exchange, bench.budget), exchange)
