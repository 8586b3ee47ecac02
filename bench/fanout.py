"""One topic to 1, 8 and 32 consumers at once, on raw sockets.

Catching up: every consumer reads the whole cached topic in answers of up to 1 MB; the figure is the sum.
Live: every consumer waits at the end of the log, a batch of 16 KB is produced, and the next one goes out when
every consumer has it; the figures are deliveries a second and the time from sending a batch to its last one.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import statistics
import time
from collections.abc import Iterator

from bench import fetching, load, processes, wire
from bench.peers import Broker, topic
from bench.runner import Bench, Comparison, Figures

SECTION = "fan-out"
COUNTS = (1, 8, 32)
ANSWER_BYTES = 1024 * 1024
TOPIC_BYTES = 64 * 1024 * 1024


def case_count(_: Bench) -> int:
    return 2 * len(COUNTS)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with contextlib.ExitStack() as stack:
        topics = {name: stack.enter_context(topic(broker)) for name, broker in bench.brokers.items()}
        for name, broker in bench.brokers.items():
            fetching.fill(broker, topics[name], TOPIC_BYTES)
        for count in COUNTS:
            yield Comparison(
                f"catching up, {consumers(count)}",
                {
                    name: functools.partial(measure_catching_up, bench, broker, topics[name], count)
                    for name, broker in bench.brokers.items()
                },
            )
    for count in COUNTS:
        yield Comparison(
            f"live, {consumers(count)}",
            {
                name: functools.partial(measure_live, bench, broker, count)
                for name, broker in bench.brokers.items()
            },
            writes_bytes=64_000_000,
        )


def consumers(count: int) -> str:
    return f"{count} consumer{'s' if count > 1 else ''}"


def measure_catching_up(bench: Bench, broker: Broker, topic_name: str, count: int) -> Figures:
    end_offset = TOPIC_BYTES // fetching.BATCH_BYTES * fetching.RECORDS_A_BATCH
    with processes.on_load_core(), contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(
                contextlib.closing(fetching.FetchStream(broker.port, topic_name, ANSWER_BYTES, end_offset))
            )
            for _ in range(count)
        ]
        fetching.fetch_over_connections(streams, bench.warm_up_budget)
        fetched, seconds = fetching.fetch_over_connections(streams, bench.budget)
    return {"MB/s": fetched / seconds / 1e6}


def measure_live(bench: Bench, broker: Broker, count: int) -> Figures:
    with topic(broker) as name, processes.on_load_core(), contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(contextlib.closing(fetching.FetchStream(broker.port, name, ANSWER_BYTES)))
            for _ in range(count)
        ]
        batch = wire.build_batch(fetching.RECORDS_A_BATCH, 1000, total_size=fetching.BATCH_BYTES)
        exchange = wire.produce_exchange(name, batch, fetching.RECORDS_A_BATCH)
        for stream in streams:
            stream.send()
        with load.connect(broker.port) as producer:
            deliver_in_turns(producer, exchange, streams, bench.warm_up_budget.seconds)
            turns_us, seconds = deliver_in_turns(producer, exchange, streams, bench.budget.seconds)
    return {
        "deliveries/s": len(turns_us) * count / seconds,
        "last delivery p50 µs": statistics.median(turns_us),
        "last delivery p99 µs": statistics.quantiles(turns_us, n=100)[98],
    }


def deliver_in_turns(
    producer: socket.socket,
    exchange: wire.ProduceExchange,
    streams: list[fetching.FetchStream],
    seconds: float,
) -> tuple[list[float], float]:
    """One turn: a batch is produced, every consumer receives it and fetches again, and the produce is
    answered."""
    chunk = memoryview(bytearray(fetching.CHUNK_BYTES))
    by_descriptor = {stream.connection.fileno(): stream for stream in streams}
    turns_us: list[float] = []
    poller = select.epoll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    started = turn_started = time.perf_counter()
    try:
        while turn_started - started < seconds:
            producer.sendall(exchange.request)
            waiting = len(streams)
            while waiting:
                ready = poller.poll(load.ANSWER_TIMEOUT_SECONDS)
                if not ready:
                    raise load.BadAnswer(f"a batch did not arrive within {load.ANSWER_TIMEOUT_SECONDS} s")
                for descriptor, _ in ready:
                    stream = by_descriptor[descriptor]
                    if stream.receive(chunk):
                        waiting -= stream.came_with_records
                        stream.send()
            load.check_answer(
                exchange, bytearray(load.receive_exactly(producer, exchange.response_size)), 0, 0
            )
            now = time.perf_counter()
            turns_us.append((now - turn_started) * 1e6)
            turn_started = now
    finally:
        poller.close()
    return turns_us, turn_started - started
