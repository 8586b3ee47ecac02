"""Fetch over one raw socket, one at a time: answers of 64 KB, 1 MB and 4 MB, cached and cold.

The topic holds 16 KB batches. Cold means that its segments were synced and dropped from the page cache right
before; each cold round reads the topic once. Beside the cached figures stands a server that does nothing but
sendfile.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path

from bench import fetching, load, machine, processes, wire
from bench.peers import MACHINE, Broker, segment_files, topic
from bench.runner import Bench, Comparison, Figures, Measure

SECTION = "fetch"
ANSWERS = {"64 KB": 64 * 1024, "1 MB": 1024 * 1024, "4 MB": 4 * 1024 * 1024}
MOST_LEFT_IN_CACHE = 0.05
DROP_ATTEMPTS = 10
DROP_PAUSE_SECONDS = 0.2


def topic_bytes(bench: Bench) -> int:
    return (64 if bench.is_quick else 256) * 1024 * 1024


def case_count(_: Bench) -> int:
    return 2 * len(ANSWERS)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with contextlib.ExitStack() as stack:
        topics = {}
        for name, broker in bench.brokers.items():
            topics[name] = stack.enter_context(topic(broker))
            fetching.fill(broker, topics[name], topic_bytes(bench))
        path = stack.enter_context(machine.scratch_file(bench))
        path.write_bytes(bytes(topic_bytes(bench)))
        for manner in (measure_cached, measure_cold):
            for size_text, size in ANSWERS.items():
                measures: dict[str, Measure] = {
                    name: functools.partial(manner, bench, broker, topics[name], size)
                    for name, broker in bench.brokers.items()
                }
                if manner is measure_cached:
                    measures[MACHINE] = functools.partial(measure_sendfile, bench, path, size)
                kind = "cached" if manner is measure_cached else "cold"
                yield Comparison(f"{kind}, {size_text} answers", measures)


def measure_cached(bench: Bench, broker: Broker, topic_name: str, answer_bytes: int) -> Figures:
    stream = open_stream(bench, broker, topic_name, answer_bytes)
    with contextlib.closing(stream), processes.on_load_core():
        fetching.fetch_one_at_a_time(stream, bench.warm_up_budget)
        fetched, seconds = fetching.fetch_one_at_a_time(stream, bench.budget._replace(max_bytes=1 << 40))
    return {"MB/s": fetched / seconds / 1e6}


def measure_cold(bench: Bench, broker: Broker, topic_name: str, answer_bytes: int) -> Figures:
    for _ in range(DROP_ATTEMPTS):
        left = fetching.drop_from_page_cache(segment_files(broker, topic_name))
        if left <= MOST_LEFT_IN_CACHE:
            break
        time.sleep(DROP_PAUSE_SECONDS)  # pages that a socket still holds cannot be dropped yet
    else:
        raise RuntimeError(f"{left:.0%} of the log stayed in the page cache; is {broker.data_dir} on tmpfs?")
    stream = open_stream(bench, broker, topic_name, answer_bytes)
    once = load.Budget(60.0, max_bytes=topic_bytes(bench) - answer_bytes)
    with contextlib.closing(stream), processes.on_load_core():
        fetched, seconds = fetching.fetch_one_at_a_time(stream, once)
    return {"MB/s": fetched / seconds / 1e6}


def open_stream(bench: Bench, broker: Broker, topic_name: str, answer_bytes: int) -> fetching.FetchStream:
    end_offset = topic_bytes(bench) // fetching.BATCH_BYTES * fetching.RECORDS_A_BATCH
    return fetching.FetchStream(broker.port, topic_name, answer_bytes, end_offset)


def measure_sendfile(bench: Bench, path: Path, answer_bytes: int) -> Figures:
    """The same number of bytes for the same request; the answer has no header to read."""
    request = wire.fetch_request("bench-000000", 0, answer_bytes)
    chunk = memoryview(bytearray(fetching.CHUNK_BYTES))
    arguments = ("sendfile", str(path), str(len(request)), str(answer_bytes))
    with machine.server(*arguments) as port, load.placed_connection(port) as connection:
        fetched, seconds = machine.fetch_bare(connection, request, answer_bytes, chunk, bench.budget.seconds)
    return {"MB/s": fetched / seconds / 1e6}


def warm_up(bench: Bench, broker: Broker) -> None:
    budget = load.Budget(0.3 if bench.is_quick else 1.0, max_bytes=1 << 40)
    with topic(broker) as name:
        end_offset = fetching.fill(broker, name, 16 * 1024 * 1024)
        for answer_bytes in ANSWERS.values():
            stream = fetching.FetchStream(broker.port, name, answer_bytes, end_offset)
            with contextlib.closing(stream), processes.on_load_core():
                fetching.fetch_one_at_a_time(stream, budget)
