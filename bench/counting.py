"""What the metrics cost a broker: CPU time of produces and fetches, with counting and without.

    python -m bench.counting [--rounds N] [--seconds S]

The broker without is a copy of the same code, from which the statements that count are taken out (WITHOUT),
and which serves no metrics. Both run all the time and are loaded in turns, in rounds of a fraction of a
second: what else the machine does hits both alike. A round gives the ratio of their CPU times; the figure is
the median of the rounds. CPU times are those of the process, in nanoseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench import fanout, fetching, load, processes, wire
from bench.peers import Broker, KlammBroker, klamm_of, running, topic
from bench.raw_produce import batch_of

SOURCE = Path(__file__).resolve().parent.parent / "src"

WITHOUT = (
    ("server/connection.py", "        times, timed_from_s = self._begin_timing()\n", ""),
    (
        "server/connection.py",
        "        if times is not None and times.untimed:\n"
        "            times.note_untimed(time.monotonic() - timed_from_s, self.last_active)\n",
        "",
    ),
    ("server/connection.py", "self._times[self.shortcut.api_key].untimed += 1\n", "pass\n"),
    ("server/replies.py", "        self.times = times\n        self.started_s = monotonic()\n", ""),
    ("server/replies.py", "        reply.times.note(monotonic() - reply.started_s)\n", ""),
    ("replication/partition.py", "        self.counters.produces += 1\n", ""),
    ("replication/partition.py", "            self.counters.bytes_in += byte_count\n", ""),
    ("replication/fetching.py", "            _count(partition, answer, session)\n", "            pass\n"),
)
"""(file, what is taken out, what stands there instead)."""

LYING_BATCHES = 256

AIM = 0.02
"""The most of the CPU time that counting may cost."""


class CountingBroker(KlammBroker):
    """With metrics, as a user has it who asks for them."""

    name = "counting"
    options = ("--http-port", "0")


class Case(NamedTuple):
    name: str
    load: Callable[[Broker, str, float], int]
    """Loads the topic of a broker for so many seconds; returns the number of requests."""


def produce(depth: int) -> Callable[[Broker, str, float], int]:
    def run(broker: Broker, name: str, seconds: float) -> int:
        exchange = wire.produce_exchange(name, batch_of(1, 100), 1)
        budget = load.Budget(seconds, 1 << 40)
        with load.placed_connection(broker.port) as connection:
            if depth == 1:
                return load.produce_one_at_a_time(connection, exchange, budget).requests
            return load.produce_pipelined(connection, exchange, depth, budget).requests

    return run


def produce_over_many(broker: Broker, name: str, seconds: float) -> int:
    exchange = wire.produce_exchange(name, batch_of(1, 100), 1)
    with processes.on_load_core(), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(load.connect(broker.port)) for _ in range(100)]
        return load.produce_over_connections(connections, exchange, load.Budget(seconds, 1 << 40)).requests


def fetch_cached(broker: Broker, name: str, seconds: float) -> int:
    """The batches that lie there; one in an answer."""
    end_offset = LYING_BATCHES * fetching.RECORDS_A_BATCH
    stream = fetching.FetchStream(broker.port, name, fetching.BATCH_BYTES, end_offset)
    with contextlib.closing(stream), processes.on_load_core():
        fetched, _ = fetching.fetch_one_at_a_time(stream, load.Budget(seconds, 1 << 40))
    return fetched // fetching.BATCH_BYTES


def deliver(count: int) -> Callable[[Broker, str, float], int]:
    def run(broker: Broker, name: str, seconds: float) -> int:
        batch = wire.build_batch(fetching.RECORDS_A_BATCH, 1000, total_size=fetching.BATCH_BYTES)
        exchange = wire.produce_exchange(name, batch, fetching.RECORDS_A_BATCH)
        with processes.on_load_core(), contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(
                    contextlib.closing(fetching.FetchStream(broker.port, name, fanout.ANSWER_BYTES))
                )
                for _ in range(count)
            ]
            for stream in streams:
                stream.send()
            with load.connect(broker.port) as producer:
                turns, _ = fanout.deliver_in_turns(producer, exchange, streams, seconds)
        return len(turns) * count

    return run


CASES = (
    Case("produce, 1 connection", produce(1)),
    Case("produce, 16 in flight", produce(16)),
    Case("produce, 100 connections", produce_over_many),
    Case("fetch, 16 KB in an answer", fetch_cached),
    Case("live delivery to 1 consumer", deliver(1)),
    Case("live delivery to 8 consumers", deliver(8)),
)


def without_counting(directory: Path) -> Path:
    """A copy of the code that does not count. Fails if the code counts in another way than it did."""
    shutil.copytree(SOURCE, directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, counting, instead in WITHOUT:
        path = directory / "src/klamm" / name
        text = path.read_text()
        if text.count(counting) != 1:
            raise SystemExit(
                f"{name} does not contain once what the bench takes out of it: {counting.strip()}"
            )
        path.write_text(text.replace(counting, instead))
    return directory


def measure(case: Case, broker: Broker, seconds: float) -> float:
    """Microseconds of CPU time for a request. No warm-up: the median leaves out the first rounds."""
    with topic(broker) as name:
        if case.load is fetch_cached:
            fetching.fill(broker, name, LYING_BATCHES * fetching.BATCH_BYTES)
        before = processes.own_cpu_ns(broker.pid)
        count = case.load(broker, name, seconds)
        return (processes.own_cpu_ns(broker.pid) - before) / 1000 / count


def in_turns(contestants: tuple[Broker, Broker], round_number: int) -> Iterator[int]:
    """Who is first changes from round to round."""
    first = round_number % 2
    yield from (first, 1 - first)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.counting", description=sys.modules[__name__].__doc__)
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.4, help="of load, in each round for each broker")
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR")
    arguments = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="klamm-counting-", dir=arguments.work_dir) as directory:
        work_dir = Path(directory)
        plain = klamm_of(without_counting(work_dir / "without"))
        with running(CountingBroker, work_dir) as counting, running(plain, work_dir) as silent:
            contestants = (counting, silent)
            print(
                f"{'CPU µs for a request, medians':<32}{'counting':>10}{'without':>10}{'cost':>9}", flush=True
            )
            for case in CASES:
                taken: tuple[list[float], list[float]] = ([], [])
                for round_number in range(arguments.rounds):
                    for index in in_turns(contestants, round_number):
                        taken[index].append(measure(case, contestants[index], arguments.seconds))
                cost = statistics.median(a / b for a, b in zip(*taken, strict=True)) - 1
                worst = max(worst, cost)
                middle = [statistics.median(each) for each in taken]
                print(f"{case.name:<32}{middle[0]:>10.2f}{middle[1]:>10.2f}{cost:>9.2%}", flush=True)
    print(f"{'reached' if worst <= AIM else 'missed'}: at most {AIM:.0%}")
    return 0 if worst <= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
