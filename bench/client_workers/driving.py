"""Measures a client, in the same way for all: `python -m bench.client_workers.<client> TASK JSON`.

The driver asks a client for chunks of records, so that the driver costs nothing per record. Each client has
its own loop over a chunk, written as its documentation suggests. Every delivery is checked and every value
compared. The first records are not timed: they open connections, fill caches and compile code.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Protocol

CHUNK_RECORDS = 10_000
SMALL_CHUNK_RECORDS = 500  # the memory is measured after each such chunk
WARM_UP_RECORDS = 30_000
WARM_UP_SECONDS = 0.5
READ_AT_ONCE = 10_000
BATCH_BYTES = 64 * 1024
QUIET_SECONDS = 30.0  # a client that brings nothing for so long has failed


class Client(Protocol):
    """One client library, opened for one topic."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None: ...

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        """acks 1, batches of BATCH_BYTES."""

    def send_many(self, count: int) -> None:
        """Sends `value` `count` times, then waits for the deliveries of the call before and checks them."""

    def finish_sending(self) -> None:
        """Waits for all deliveries and checks them."""

    def open_consumer(self) -> None:
        """All partitions, from the beginning, without a group."""

    def read_some(self, most: int) -> int:
        """Waits for records, at most `most` if the client has such a limit; compares every value."""

    def close_consumer(self) -> None: ...

    def time_acknowledgements(self, count: int) -> list[int]:
        """Nanoseconds from the call that sends a record to its acknowledgement, one after another."""

    def time_arrivals(self, count: int) -> list[int]:
        """Nanoseconds from the call that sends a record to having it from the consumer, one after another."""

    def close(self) -> None: ...


class FedClient(Client, Protocol):
    """A client whose producer has a bound on the bytes it holds."""

    def feed_many(self, count: int) -> None:
        """Sends `count` values, each an object of its own. Checks no delivery; waits only for buffer
        space."""

    def counted_bytes(self) -> float:
        """The buffered bytes that the producer reports; 0 if it reports none."""

    def check_fed(self) -> None:
        """Fails if any of the records failed."""


def send(client: Client, record_size: int, seconds: float, max_records: int) -> dict[str, float]:
    """Send until `seconds` are over or `max_records` are sent; the time ends with the last
    acknowledgement."""
    client.open_producer(bytes(record_size), linger_ms=5, buffer_bytes=32 << 20)
    sent = 0
    while sent < min(WARM_UP_RECORDS, max_records):
        client.send_many(CHUNK_RECORDS)
        sent += CHUNK_RECORDS
    client.finish_sending()
    sent, cpu_started, started = 0, time.process_time(), time.perf_counter()
    while sent < max_records and time.perf_counter() - started < seconds:
        client.send_many(CHUNK_RECORDS)
        sent += CHUNK_RECORDS
    client.finish_sending()
    return {
        "records": sent,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
    }


def poll(client: Client, record_count: int, seconds: float) -> dict[str, float]:
    """The whole topic, or as much as the time allows; the clock starts when the first records are there."""
    client.open_consumer()
    _read(client, record_count, WARM_UP_SECONDS)
    client.close_consumer()
    client.open_consumer()
    ahead = client.read_some(READ_AT_ONCE)
    cpu_started, started = time.process_time(), time.perf_counter()
    read = _read(client, record_count - ahead, seconds)
    figures = {
        "records": float(read),
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
    }
    client.close_consumer()
    return figures


def _read(client: Client, record_count: int, seconds: float) -> int:
    read, started = 0, time.perf_counter()
    while read < record_count and time.perf_counter() - started < seconds:
        some = client.read_some(min(READ_AT_ONCE, record_count - read))
        if not some:
            raise SystemExit(f"only {read} of {record_count} records within {QUIET_SECONDS} s")
        read += some
    return read


def round_trip(client: Client, record_size: int, count: int) -> dict[str, float]:
    client.open_producer(bytes(record_size), linger_ms=0, buffer_bytes=32 << 20)
    warm_up_count = max(count // 10, 20)
    client.time_acknowledgements(warm_up_count)
    acknowledged = client.time_acknowledgements(count)
    client.open_consumer()
    if _read(client, warm_up_count + count, QUIET_SECONDS) != warm_up_count + count:
        raise SystemExit("the consumer got other records than were sent")
    client.time_arrivals(warm_up_count)
    arrived = client.time_arrivals(count)
    client.close_consumer()
    return {**_percentiles("acknowledged", acknowledged), **_percentiles("arrived", arrived)}


def _percentiles(what: str, nanoseconds: list[int]) -> dict[str, float]:
    cuts = statistics.quantiles(nanoseconds, n=100, method="inclusive")
    return {f"{what}_p50_us": cuts[49] / 1e3, f"{what}_p99_us": cuts[98] / 1e3}


def feed(client: FedClient, record_size: int, seconds: float, buffer_bytes: int) -> dict[str, float]:
    """Send as fast as possible while the broker is slow. Prints `ready` first; no record may be lost."""
    client.open_producer(bytes(record_size), linger_ms=5, buffer_bytes=buffer_bytes)
    for _ in range(WARM_UP_RECORDS // SMALL_CHUNK_RECORDS):
        client.feed_many(SMALL_CHUNK_RECORDS)
        client.finish_sending()  # each: the buffer must not have been full before it is watched
    print("ready", flush=True)
    sent, most_counted, started = 0, 0.0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        client.feed_many(SMALL_CHUNK_RECORDS)
        sent += SMALL_CHUNK_RECORDS
        most_counted = max(most_counted, client.counted_bytes())
    client.finish_sending()
    client.check_fed()
    return {"records": sent, "most_counted_mb": most_counted / 1e6}


TASKS: dict[str, Callable[..., dict[str, float]]] = {
    "send": send,
    "poll": poll,
    "round_trip": round_trip,
    "feed": feed,
}


def main(client_class: type[Client]) -> None:
    task, arguments = sys.argv[1], json.loads(sys.argv[2])
    client = client_class(
        arguments.pop("bootstrap"), arguments.pop("topic"), arguments.pop("partition_count")
    )
    figures = TASKS[task](client, **arguments)
    client.close()
    print(json.dumps(figures), flush=True)
