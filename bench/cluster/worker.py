"""Producers with acks=all in a process of their own: `python -m bench.cluster.worker TASK JSON`.

Prints its figures as one line of JSON. A record that is not acknowledged in the end is a failure.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message, Producer

import klamm
from bench.client_workers import driving
from bench.client_workers.confluent import Confluent
from bench.client_workers.klamm_plain import KlammPlain

DELIVERY_SECONDS = 60.0


class KlammAcksAll(KlammPlain):
    acks = "all"


class ConfluentAcksAll(Confluent):
    acks = "all"


THROUGHPUT_CLIENTS: dict[str, type[driving.Client]] = {
    "klamm": KlammAcksAll,
    "confluent": ConfluentAcksAll,
}


def send(
    client: str,
    bootstrap: str,
    topic: str,
    partition_count: int,
    record_size: int,
    seconds: float,
    max_records: int,
) -> dict[str, float]:
    """As fast as the client can."""
    one = THROUGHPUT_CLIENTS[client](bootstrap, topic, partition_count)
    done = driving.send(one, record_size, seconds, max_records)
    one.close()
    return done


class PacedProducer(Protocol):
    """Sends single records; `acknowledged` is called for each, with what was given to `send`."""

    def send(self, tag: int) -> None: ...

    def wait(self, seconds: float) -> None:
        """Let acknowledgements come for so long."""

    def close(self) -> None:
        """Wait for all acknowledgements; SystemExit if one failed."""


class PacedConfluent:
    def __init__(self, bootstrap: str, topic: str, value: bytes, acknowledged: Callable[[int], None]) -> None:
        self._topic, self._value, self._acknowledged = topic, value, acknowledged
        self._failed: list[KafkaError] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "socket.nagle.disable": True}
        )
        self._producer.list_topics(topic, timeout=30)

    def send(self, tag: int) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._acknowledged(tag)
            else:
                self._failed.append(error)

        self._producer.produce(self._topic, self._value, partition=0, on_delivery=delivered)

    def wait(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def close(self) -> None:
        left = self._producer.flush(DELIVERY_SECONDS)
        if left or self._failed:
            raise SystemExit(f"{len(self._failed)} records failed, {left} were not sent: {self._failed[:1]}")


class PacedKlamm:
    def __init__(self, bootstrap: str, topic: str, value: bytes, acknowledged: Callable[[int], None]) -> None:
        self._topic, self._value, self._acknowledged = topic, value, acknowledged
        self._failed: list[BaseException] = []
        self._producer = klamm.Producer(bootstrap, acks="all", linger_ms=0)

    def send(self, tag: int) -> None:
        def delivered(delivery: Any) -> None:
            error = delivery.exception()
            if error is None:
                self._acknowledged(tag)
            else:
                self._failed.append(error)

        self._producer.send(self._topic, self._value, partition=0).add_done_callback(delivered)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._producer.close(DELIVERY_SECONDS)
        if self._failed:
            raise SystemExit(f"{len(self._failed)} records failed: {self._failed[0]}")


PACED_CLIENTS: dict[str, Callable[..., PacedProducer]] = {"confluent": PacedConfluent, "klamm": PacedKlamm}


def _send_at_rate(producer: PacedProducer, rate: int, goes_on: Callable[[int], bool]) -> None:
    """Tags are the nanoseconds at which records were sent."""
    started, number = time.perf_counter_ns(), 0
    while goes_on(number):
        due = started + number * 1_000_000_000 // rate
        while (wait_ns := due - time.perf_counter_ns()) > 0:
            producer.wait(wait_ns / 1e9)
        producer.send(time.perf_counter_ns())
        number += 1


def pace(
    client: str, bootstrap: str, topic: str, rate: int, seconds: float, skipped_seconds: float
) -> dict[str, float]:
    """How long records at an even rate wait for their acknowledgements; the first seconds do not count."""
    times: list[tuple[int, int]] = []
    producer = PACED_CLIENTS[client](
        bootstrap, topic, bytes(100), lambda sent_ns: times.append((sent_ns, time.perf_counter_ns()))
    )
    started = time.perf_counter_ns()
    _send_at_rate(producer, rate, lambda number: number < rate * (seconds + skipped_seconds))
    producer.close()
    counted_from = started + int(skipped_seconds * 1e9)
    waits_ms = [(done - sent) / 1e6 for sent, done in times if sent >= counted_from]
    cuts = statistics.quantiles(waits_ms, n=100, method="inclusive")
    first, last = times[0][1], times[-1][1]
    return {
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "acknowledged_per_second": (len(times) - 1) / ((last - first) / 1e9),
    }


def watch_gap(client: str, bootstrap: str, topic: str, rate: int) -> dict[str, float]:
    """The longest time without an acknowledgement, until the standard input ends.

    Prints `ready` once records are acknowledged.
    """
    is_over = threading.Event()
    acknowledged_ns: list[int] = []
    producer = PACED_CLIENTS[client](
        bootstrap, topic, bytes(100), lambda _: acknowledged_ns.append(time.perf_counter_ns())
    )
    producer.send(0)
    while not acknowledged_ns:
        producer.wait(0.01)
    print("ready", flush=True)

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    acknowledged_ns.clear()
    _send_at_rate(producer, rate, lambda _: not is_over.is_set())
    producer.close()
    gaps = [after - before for before, after in itertools.pairwise(acknowledged_ns)]
    return {"gap_seconds": max(gaps) / 1e9}


TASKS: dict[str, Any] = {"send": send, "pace": pace, "watch_gap": watch_gap}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
