"""Produce-to-consume latency with librdkafka at steady rates: p50, p99, p99.9.

A producer and a consumer process, one partition, records of 100 B, acks 1. The time runs from the call that
hands a record to the producing library to the moment the consuming application has it. The first second is
left out. A broker that cannot keep up shows it: the received rate falls behind and the percentiles grow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from bench.librdkafka import WORKER
from bench.peers import Broker, topic
from bench.runner import Bench, Comparison, Figures
from bench.workers import finish_worker, start_worker, wait_until_ready

SECTION = "latency"
RECORD_SIZE = 100
SKIPPED_SECONDS = 1
PATIENCE_SECONDS = 20.0  # for a saturated broker to deliver its backlog


class Pace(NamedTuple):
    rate: int
    linger_ms: float

    @property
    def case(self) -> str:
        return f"{self.rate:,} records/s, linger {self.linger_ms:g} ms"


PACES = (Pace(1_000, 0), Pace(5_000, 0), Pace(20_000, 1))


def case_count(_: Bench) -> int:
    return len(PACES)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for pace in PACES:
        yield Comparison(
            pace.case,
            {name: functools.partial(measure, bench, broker, pace) for name, broker in bench.brokers.items()},
            rounds=bench.long_rounds,
        )


def measure(bench: Bench, broker: Broker, pace: Pace) -> Figures:
    seconds = SKIPPED_SECONDS + (2 if bench.is_quick else 8)
    with topic(broker) as name:
        common: dict[str, object] = {"bootstrap": f"127.0.0.1:{broker.port}", "topic": name}
        receiver = start_worker(
            WORKER,
            "receive",
            {
                **common,
                "record_count": pace.rate * seconds,
                "skip_count": pace.rate * SKIPPED_SECONDS,
                "patience_seconds": seconds + PATIENCE_SECONDS,
            },
        )
        try:
            wait_until_ready(receiver)
            sender = start_worker(
                WORKER,
                "send",
                {
                    **common,
                    "rate": pace.rate,
                    "seconds": seconds,
                    "record_size": RECORD_SIZE,
                    "linger_ms": pace.linger_ms,
                },
            )
            sent = finish_worker(sender, seconds + 2 * PATIENCE_SECONDS)
            received = finish_worker(receiver, 2 * PATIENCE_SECONDS)
        finally:
            receiver.kill()
    return {
        "p50 ms": received["p50_ms"],
        "p99 ms": received["p99_ms"],
        "p99.9 ms": received["p99.9_ms"],
        "sent records/s": sent["sent_per_second"],
        "received records/s": received["received_per_second"],
    }
