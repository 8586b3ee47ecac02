"""`make simulate`: seed after seed until the cluster-hours are done, or one seed again; then a report.

HOURS=n        how many hours of cluster time to simulate (1 if not given)
SEED=n         run this seed only
FIRST_SEED=n   where to begin; without it, at a number taken from the clock, which is printed
WORKERS=n      processes that share the seeds (1 if not given)
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from itertools import count, islice
from multiprocessing import Pool
from typing import NamedTuple

from klamm.testing.simulation.cluster import Result, SimulationFailed, simulate

_REPORT_INTERVAL_S = 10.0
_SECONDS_PER_HOUR = 3600.0
_GC_THRESHOLD = 100_000
_SEEDS_AT_ONCE = 8
"""A process is given this many before the others are waited for."""
_INTERRUPTED = 130
"""The exit status of a run that Ctrl-C ended."""


class _Outcome(NamedTuple):
    seed: int
    result: Result | None
    failure: str
    cpu_seconds: float


class _Report:
    """What became of all seeds."""

    def __init__(self, first_seed: int) -> None:
        self._first_seed = self._last_seed = first_seed
        self.seconds = 0.0
        self._cpu_seconds = 0.0
        self._sums: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, outcome: _Outcome) -> None:
        self._last_seed = outcome.seed
        self._cpu_seconds += outcome.cpu_seconds
        result = outcome.result
        if result is None:
            print(outcome.failure)
            self.failed.append(outcome.seed)
            return
        self.seconds += result.seconds
        self._faults.update(result.faults)
        for what, number in (
            ("elections of leaders", result.elections),
            ("records committed", result.committed),
            ("produces acknowledged with acks=all", result.acknowledged),
            ("records read", result.read),
            ("offset commits acknowledged", result.commits),
            ("rebalances", result.rebalances),
            ("members fenced", result.fenced),
            ("checks", result.checks),
        ):
            self._sums[what] += number

    def line(self) -> str:
        hours = self.seconds / _SECONDS_PER_HOUR
        return (
            f"seeds {self._first_seed} to {self._last_seed}: {hours:.1f} cluster-hours, "
            f"{hours / max(self._cpu_seconds, 0.001):.2f} in a second of CPU; {len(self.failed)} seeds failed"
        )

    def table(self) -> Iterator[str]:
        yield "| what | number |"
        yield "|---|---|"
        yield f"| seeds | {self._first_seed} to {self._last_seed} |"
        yield f"| cluster-hours | {self.seconds / _SECONDS_PER_HOUR:.1f} |"
        for kind, number in sorted(self._faults.items()):
            yield f"| fault: {kind} | {number} |"
        for what, number in self._sums.items():
            yield f"| {what} | {number} |"
        yield f"| violated invariants | {len(self.failed)} |"


def main() -> int:
    # A run makes many objects that live as long as it does: to look for cycles among them takes long.
    gc.set_threshold(_GC_THRESHOLD)
    seed = os.environ.get("SEED", "")
    if seed:
        return _run_one(int(seed))
    first = int(os.environ.get("FIRST_SEED", "") or time.time())
    hours = float(os.environ.get("HOURS", "") or 1)
    return _run_many(first, hours, int(os.environ.get("WORKERS", "") or 1))


def _run_one(seed: int) -> int:
    outcome = _outcome(seed)
    if outcome.result is None:
        print(outcome.failure)
        return 1
    report = _Report(seed)
    report.add(outcome)
    print("\n".join(report.table()))
    return 0


def _run_many(first: int, hours: float, workers: int) -> int:
    """Ctrl-C ends the run early, with the report of what was done."""
    report = _Report(first)
    outcomes = _outcomes(first, workers)
    try:
        _fill(report, outcomes, hours)
        status = 1 if report.failed else 0
    except KeyboardInterrupt:
        print("interrupted")
        status = _INTERRUPTED
    outcomes.close()
    print("\n".join(report.table()))
    if report.failed:
        print(f"failed: {', '.join(map(str, report.failed))}; SEED=n make simulate runs one of them again")
    return status


def _fill(report: _Report, outcomes: Iterable[_Outcome], hours: float) -> None:
    """Add outcomes until there are enough hours, with a line on the terminal every few seconds."""
    reported_s = time.monotonic()
    for outcome in outcomes:
        report.add(outcome)
        is_done = report.seconds >= hours * _SECONDS_PER_HOUR
        now_s = time.monotonic()
        if is_done or now_s - reported_s > _REPORT_INTERVAL_S:
            reported_s = now_s
            print(report.line(), flush=True)
        if is_done:
            return


def _outcomes(first: int, workers: int) -> Generator[_Outcome, None, None]:
    """In the order of the seeds."""
    if workers == 1:
        yield from map(_outcome, count(first))
        return
    seeds = count(first)
    with Pool(workers, _ignore_interrupts) as pool:
        while True:
            yield from pool.imap(_outcome, islice(seeds, workers * _SEEDS_AT_ONCE))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _outcome(seed: int) -> _Outcome:
    began_s = time.process_time()
    try:
        return _Outcome(seed, simulate(seed), "", time.process_time() - began_s)
    except SimulationFailed as failure:
        return _Outcome(seed, None, str(failure), time.process_time() - began_s)


if __name__ == "__main__":
    sys.exit(main())
