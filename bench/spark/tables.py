"""Tables: small batches, logs of many commits, merges; decoding and rules; and the whole command.

Everything is Klamm's own: there is no connector that does the same without a jar for another Spark. One
Klamm broker in its own process, topics of six partitions, `local[2]`. What is compared with the official
connector, topics into tables, is in the section `spark`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.peers import KLAMM, Broker, KlammBroker, running, topic
from bench.runner import Bench, Comparison, Figures
from bench.spark import material
from bench.spark.children import PYTHON_PATH, SparkChild
from bench.spark.material import PARTITION_COUNT
from bench.spark.pipeline_tasks import make_project
from bench.spark.session_worker import MASTER
from bench.workers import finish_worker, start_worker
from klamm.pipelines.tables.table import Table

SECTION = "tables"
MOST_ROUNDS = 3

FEW, MANY = 100, 10_000
QUICK_MANY = 400
MEASURED_COMMITS, QUICK_COMMITS = 200, 40
COMMITS_CASE = f"a table with {MANY:,} commits beside one with {FEW}"
PLAN_RATIO, COMMIT_RATIO = "plan, × of few commits", "commit, × of few commits"

MERGED_MB, QUICK_MB = 1000, 100
SMALL_FILE_MB = 4
MERGE_CASE = "merging 1 GB of files of 4 MB"

BATCH_ROWS = 1000
BATCHES, QUICK_BATCHES = 60, 9
BATCH_METRICS = {
    "batch_ms": "batch ms",
    "tasks_and_commit_ms": "of it in tasks and the commit ms",
    "offsets_ms": "of it finding offsets, planning ms",
    "checkpoint_ms": "of it for the checkpoint ms",
}

BATCH_PARTITIONS = (1, PARTITION_COUNT)

ORDERS, QUICK_ORDERS = 2_000_000, 60_000
DECODE_CASES = {
    "undecoded": "orders of 140 B to noop, not decoded",
    "decoded": "orders of 140 B to noop, decoded from JSON",
    "orders": "orders of 140 B to noop, decoded, with a rule",
}
WHOLE_CASE = "klamm pipeline run --once: decoding, a rule, dead letters, a table"
WHOLE = "rows/s, with the start of Spark"

WORKER = "bench.spark.table_worker"
WORKER_TIMEOUT_SECONDS = 1800.0
RUN_TIMEOUT_SECONDS = 600.0


def batch_case(partitions: int) -> str:
    where = "one partition" if partitions == 1 else f"{partitions} partitions"
    return f"batches of 1,000 rows from {where}: decoding, a rule, a table"


def case_count(_: Bench) -> int:
    return 2 + len(BATCH_PARTITIONS) + len(DECODE_CASES) + 1


def comparisons(bench: Bench) -> Iterator[Comparison]:
    rounds = min(bench.rounds, MOST_ROUNDS)
    # Both take minutes, and each of their figures is of many commits or files.
    yield Comparison(COMMITS_CASE, {KLAMM: functools.partial(_commits, bench)}, 1)
    megabytes = QUICK_MB if bench.is_quick else MERGED_MB
    yield Comparison(
        MERGE_CASE, {KLAMM: functools.partial(_merge, bench, megabytes)}, rounds, 2 * megabytes * 1_000_000
    )
    child: SparkChild | None = None
    try:
        bench.on_step(f"{SECTION}: starting Spark")
        child = SparkChild(bench.work_dir, "tables", [])
        child.wait_until_ready()
        with running(KlammBroker, bench.work_dir) as broker:
            for partitions in BATCH_PARTITIONS:
                measure = functools.partial(_batches, bench, broker, child, partitions)
                yield Comparison(batch_case(partitions), {KLAMM: measure}, rounds)
            orders = QUICK_ORDERS if bench.is_quick else ORDERS
            with topic(broker, PARTITION_COUNT) as name:
                size = material.fill_orders(broker, name, orders)
                folder = bench.work_dir / "decoding"
                make_project(folder, material.bootstrap(broker), name, MASTER)
                for node, case in DECODE_CASES.items():
                    measure = functools.partial(_decode, child, folder, node, orders, size)
                    measure()  # the first pass is not counted
                    yield Comparison(case, {KLAMM: measure}, rounds)
            child.stop()
            child = None
            with topic(broker, PARTITION_COUNT) as name:
                material.fill_orders(broker, name, orders)
                yield Comparison(
                    WHOLE_CASE, {KLAMM: functools.partial(_run_whole, bench, broker, name, orders)}, rounds
                )
    finally:
        if child is not None:
            child.stop()


# ---- without Spark


def _commits(bench: Bench) -> Figures:
    many = QUICK_MANY if bench.is_quick else MANY
    measured = QUICK_COMMITS if bench.is_quick else MEASURED_COMMITS
    done = _worked("commits", bench.work_dir / "commits", few=FEW, many=many, measured=measured)
    return {
        "plan, 100 commits ms": done["plan_few_ms"],
        "plan ms": done["plan_many_ms"],
        PLAN_RATIO: done["plan_many_ms"] / done["plan_few_ms"],
        "commit, 100 commits ms": done["commit_few_ms"],
        "commit ms": done["commit_many_ms"],
        COMMIT_RATIO: done["commit_many_ms"] / done["commit_few_ms"],
    }


def _merge(bench: Bench, megabytes: int) -> Figures:
    done = _worked("merge", bench.work_dir / "merge", megabytes=megabytes, file_megabytes=SMALL_FILE_MB)
    return {"MB/s": done["megabytes"] / done["seconds"]}


def _worked(task: str, path: Path, **arguments: int) -> dict[str, float]:
    worker = start_worker(WORKER, task, {"path": str(path), **arguments})
    return finish_worker(worker, WORKER_TIMEOUT_SECONDS)


# ---- with Spark


def _batches(bench: Bench, broker: Broker, child: SparkChild, partitions: int) -> Figures:
    batches = QUICK_BATCHES if bench.is_quick else BATCHES
    with topic(broker, partitions) as name:
        material.fill_orders(broker, name, batches * BATCH_ROWS, partitions)
        folder = bench.work_dir / "batches"
        make_project(folder, material.bootstrap(broker), name, MASTER, batch_rows=BATCH_ROWS)
        done = child.ask("pipeline_batches", folder=str(folder))
    if done["batches"] < batches:
        raise RuntimeError(f"{done['batches']} instead of {batches} batches were measured")
    return {metric: done[key] for key, metric in BATCH_METRICS.items()}


def _decode(child: SparkChild, folder: Path, node: str, rows: int, size: int) -> Figures:
    done = child.ask("decode", folder=str(folder), node=node, rows=rows)
    return {
        "rows/s": rows / done["seconds"],
        "MB/s": size / done["seconds"] / 1e6,
        "CPU µs/row": done["cpu_seconds"] / rows * 1e6,
    }


def _run_whole(bench: Bench, broker: Broker, name: str, rows: int) -> Figures:
    """The command in a process of its own, as a user starts it, on a new table each time."""
    folder = bench.work_dir / f"whole-{time.monotonic_ns()}"
    make_project(folder, material.bootstrap(broker), name, MASTER)
    command = [str(Path(sys.executable).with_name("klamm")), "pipeline", "run", "--once"]
    started = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | PYTHON_PATH,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"klamm pipeline run failed: {done.stderr.strip()[-600:]}")
    newest = Table(str(folder / "tables/orders")).newest()
    found = 0 if newest is None else newest.count()
    if found != (wanted := rows - rows // material.BAD_EVERY):
        raise RuntimeError(f"{found} instead of {wanted} rows are in the table")
    shutil.rmtree(folder)
    return {WHOLE: rows / seconds, "s": seconds}
