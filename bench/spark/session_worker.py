"""Runs tasks on one Spark session: `python -m bench.spark.session_worker JSON`, with tasks as JSON lines on
stdin.

Answers go to the stdout of the start; all other output to stdout, such as the JVM's, goes to stderr.
Times are those of the query alone, without the checks after it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

import klamm
import pyspark_klamm
from bench import processes
from bench.spark import pipeline_tasks
from bench.spark.ready_made import ReadyMade
from klamm.pipelines.tables.columns import arrow_schema
from klamm.pipelines.tables.files import REPORT, Target, write_files
from klamm.pipelines.tables.table import Batch, Table, WrittenFile
from pyspark_klamm.session import LOCAL_SETTINGS

MASTER = "local[2]"
SETTINGS = {"spark.driver.memory": "2g"}
"""Settings of both connectors. Apart from these and the jars, a session is as pyspark_klamm.session makes
it."""

TUNED = [name for name in LOCAL_SETTINGS if name.startswith("spark.sql.streaming.")]
"""The settings of our session for streaming queries; without them, Spark's defaults hold."""

IDLE_EVENTS_MS = 100
"""How often an idle query reports its progress: with Spark's default of ten seconds there is no median."""
KEPT_EVENTS = 1000
"""How many of these reports a query keeps; more than one query makes."""


class SessionTasks:
    """The tasks, on one session."""

    def __init__(self, directory: str, jars: list[str]) -> None:
        self._directory = Path(directory)
        settings = SETTINGS | {
            "spark.jars": ",".join(jars),
            "spark.local.dir": str(self._directory / "local"),
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
        }
        self._spark: SparkSession = pyspark_klamm.session("bench", MASTER, settings)
        self._spark.sparkContext.setLogLevel("ERROR")
        self._spark.dataSource.register(ReadyMade)

    def read(
        self, *, source: str, options: dict[str, str], sink: str, rows: int, columns: list[str] | None = None
    ) -> dict[str, float]:
        """Read a whole topic into a sink, once."""
        started = time.perf_counter()
        frame = self._spark.read.format(source).options(**options).load()
        if columns:
            frame = frame.selectExpr(*columns)
        sinks = {"noop": self._to_noop, "parquet": self._to_parquet, "table": self._to_table}
        return {"rows": rows, "seconds": sinks[sink](frame, rows) - started}

    def _to_noop(self, frame: DataFrame, rows: int) -> float:
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter()

    def _to_table(self, frame: DataFrame, rows: int) -> float:
        """As a pipeline writes a batch to its table."""
        path = self._directory / "delta"
        target = Target(str(path), arrow_schema(frame.schema))
        table = Table(str(path))
        try:
            reports = frame.mapInArrow(partial(write_files, target=target), REPORT).collect()
            files = [WrittenFile.of(report.asDict()) for report in reports]
            table.append(files, Batch("bench", 1, 0), target.schema, ())
            ended = time.perf_counter()
            newest = table.newest()
            found = 0 if newest is None else newest.count()
        finally:
            shutil.rmtree(path, ignore_errors=True)
        if found != rows:
            raise RuntimeError(f"{found} of {rows} rows are in the table")
        return ended

    def _to_parquet(self, frame: DataFrame, rows: int) -> float:
        path = self._directory / "table"
        try:
            frame.write.parquet(str(path))
            ended = time.perf_counter()
            found = sum(pyarrow.parquet.read_metadata(part).num_rows for part in path.glob("part-*.parquet"))
        finally:
            shutil.rmtree(path, ignore_errors=True)
        if found != rows:
            raise RuntimeError(f"{found} of {rows} rows are in the table")
        return ended

    def write(
        self, *, source: str, options: dict[str, str], rows: int, size: int, tasks: int
    ) -> dict[str, float]:
        """Write rows to a topic; Spark makes them while it writes, all with one value."""
        value = functions.lit(bytearray(os.urandom(size))).alias("value")
        frame = self._spark.range(0, rows, 1, tasks).select(value)
        started = time.perf_counter()
        if source == "noop":
            self._to_noop(frame, rows)
        else:
            frame.write.format(source).options(**options).save()
        return {"rows": rows, "seconds": time.perf_counter() - started}

    def pipeline_batches(self, *, folder: str) -> dict[str, float]:
        return pipeline_tasks.small_batches(self._spark, folder)

    def decode(self, *, folder: str, node: str, rows: int) -> dict[str, float]:
        return {"rows": rows, **pipeline_tasks.decode(self._spark, folder, node)}

    def triggers(
        self, *, source: str, options: dict[str, str], tuned: bool, partitions: int, batches: int,
        records: int, idle_seconds: float,
    ) -> dict[str, float]:  # fmt: skip
        """Run a stream over small batches, one after another, then over no records for a while."""
        for name in TUNED:
            if tuned:
                self._spark.conf.set(name, LOCAL_SETTINGS[name])
            else:
                self._spark.conf.unset(name)
        self._spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", str(IDLE_EVENTS_MS))
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(KEPT_EVENTS))
        rows = self._spark.readStream.format(source).options(**options).load()
        checkpoint = self._directory / f"checkpoint-{time.monotonic_ns()}"
        writing = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writing.start()
        try:
            with klamm.Producer(options["kafka.bootstrap.servers"]) as producer:
                taken = _small_batches(query, producer, options["subscribe"], partitions, batches, records)
            return {**taken, **_idle(query, idle_seconds)}
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)


def _small_batches(
    query: StreamingQuery, producer: klamm.Producer, topic: str, partitions: int, batches: int, records: int
) -> dict[str, float]:
    """Measure small batches. The first third of them warms up the query and is not counted."""
    for _ in range(batches):
        for record in range(records):
            producer.send(topic, b"%d" % record, partition=record % partitions)
        producer.flush()
        query.processAllAvailable()
    said = [one for one in query.recentProgress if one.numInputRows]
    rows = sum(one.numInputRows for one in said)
    if rows != batches * records:
        raise RuntimeError(f"the query read {rows} of {batches * records} records")
    durations = [one.durationMs for one in said[len(said) // 3 :]]

    def middle(*names: str) -> float:
        return statistics.median(sum(one.get(name, 0) for name in names) for one in durations)

    return {
        "batch_ms": middle("triggerExecution"),
        "batch_tasks_ms": middle("addBatch"),
        "batch_offsets_ms": middle("latestOffset", "getBatch", "queryPlanning"),
        "batch_checkpoint_ms": middle("walCommit", "commitOffsets"),
    }


def _idle(query: StreamingQuery, seconds: float) -> dict[str, float]:
    """Measure an idle query: its CPU time and, from its progress reports, how long a check for records
    takes."""
    seen = len(query.recentProgress)
    before, started = processes.cpu_seconds(os.getpid()), time.perf_counter()
    time.sleep(seconds)
    cpu_seconds = processes.cpu_seconds(os.getpid()) - before
    elapsed = time.perf_counter() - started
    looks = [one.durationMs["triggerExecution"] for one in query.recentProgress[seen:]]
    return {
        "idle_ms": statistics.median(looks),
        "idle_cpu_percent": cpu_seconds / elapsed * 100,
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    tasks = SessionTasks(**json.loads(sys.argv[1]))
    answer({"ready": True})
    for line in sys.stdin:
        task, arguments = json.loads(line)
        try:
            answer(getattr(tasks, task)(**arguments))
        except Exception as failure:  # the bench records it, and sends the next task
            answer({"error": f"{type(failure).__name__}: {failure}"})


if __name__ == "__main__":
    main()
