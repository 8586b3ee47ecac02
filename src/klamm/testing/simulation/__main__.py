"""`make simulate`: seed after seed until the cluster-hours are done, or one seed again.

HOURS=n        how many hours of cluster time to simulate (1 if not given)
SEED=n         run this seed only
FIRST_SEED=n   where to begin; without it, at a number taken from the clock, which is printed
"""

from __future__ import annotations

import os
import sys
import time

from klamm.testing.simulation.cluster import Result, SimulationFailed, simulate

_REPORT_INTERVAL_S = 10.0
_SECONDS_PER_HOUR = 3600.0


def main() -> int:
    seed = os.environ.get("SEED", "")
    if seed:
        return _run_one(int(seed))
    first = int(os.environ.get("FIRST_SEED", "") or time.time())
    return _run_many(first, float(os.environ.get("HOURS", "") or 1))


def _run_one(seed: int) -> int:
    try:
        print(f"seed {seed}: {_described(simulate(seed))}")
    except SimulationFailed as failure:
        print(failure)
        return 1
    return 0


def _run_many(first: int, hours: float) -> int:
    seconds, seed, elections, acknowledged = 0.0, first, 0, 0
    failed: list[int] = []
    started_s = reported_s = time.monotonic()
    while seconds < hours * _SECONDS_PER_HOUR:
        try:
            result = simulate(seed)
        except SimulationFailed as failure:
            print(failure)
            failed.append(seed)
            seconds += 1
        else:
            seconds += result.seconds
            elections += result.elections
            acknowledged += result.acknowledged
        seed += 1
        now_s = time.monotonic()
        if now_s - reported_s > _REPORT_INTERVAL_S or seconds >= hours * _SECONDS_PER_HOUR:
            reported_s = now_s
            rate = seconds / _SECONDS_PER_HOUR / (now_s - started_s)
            print(
                f"seeds {first} to {seed - 1}: {seconds / _SECONDS_PER_HOUR:.1f} cluster-hours, "
                f"{rate:.2f} a second; {elections} elections, {acknowledged} acknowledged records, "
                f"{len(failed)} seeds failed",
                flush=True,
            )
    if failed:
        print(f"failed: {', '.join(map(str, failed))}; SEED=n make simulate runs one of them again")
    return 1 if failed else 0


def _described(result: Result) -> str:
    return (
        f"{result.seconds:.0f} s of cluster time, {result.elections} elections, {result.committed} records "
        f"committed, {result.acknowledged} acknowledged, {result.read} read; all invariants hold"
    )


if __name__ == "__main__":
    sys.exit(main())
