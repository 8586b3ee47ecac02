"""From the start of the process to the first answer, and resident memory when idle and after load.

Every round starts a broker on an empty data directory and asks ApiVersions until it answers. Klamm is timed
from the call that starts it, Kafka from the start of its JVM (formatting its directory is not counted).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

from bench import processes
from bench.peers import Broker, running
from bench.runner import Bench, BrokerKind, Comparison, Figures

SECTION = "start"
START_CASE = "start, then idle"
AFTER_LOAD_CASE = "after the load of this run"
SETTLE_SECONDS = 2.0  # lets a start finish what it does behind its first answer


def case_count(_: Bench) -> int:
    return 1


def comparisons(bench: Bench) -> Iterator[Comparison]:
    measures = {kind.name: functools.partial(measure_start, bench, kind) for kind in bench.kinds}
    yield Comparison(START_CASE, measures, rounds=1 if bench.is_quick else 5)


def measure_start(bench: Bench, kind: BrokerKind) -> Figures:
    with running(kind, bench.work_dir) as broker:
        time.sleep(SETTLE_SECONDS)
        return {
            "start to first answer s": broker.start_seconds,
            "resident MB": processes.resident_mb(broker.pid),
        }


def measure_memory(broker: Broker) -> Figures:
    return {"resident MB": processes.resident_mb(broker.pid)}


def memory_after_load(bench: Bench) -> Iterator[Comparison]:
    yield Comparison(
        AFTER_LOAD_CASE,
        {name: functools.partial(measure_memory, broker) for name, broker in bench.brokers.items()},
        rounds=1,
    )
