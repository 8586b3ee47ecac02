"""What a session is asked to do: `python -m bench.spark.session_worker JSON`, tasks as JSON lines on stdin.

The answers go to what stdout was at the start; whatever else writes there, like the JVM, goes to stderr.
Times are those of the query alone: what is checked afterwards is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

import klamm
import pyspark_klamm
from bench import processes
from bench.spark.ready_made import ReadyMade
from pyspark_klamm.session import LOCAL_SETTINGS

MASTER = "local[2]"
SETTINGS = {"spark.driver.memory": "2g"}
"""For both connectors alike. Beyond them, and their jars, a session is what pyspark_klamm.session makes."""

TUNED = [name for name in LOCAL_SETTINGS if name.startswith("spark.sql.streaming.")]
"""What our session sets for streaming queries; Spark's defaults are had by unsetting it."""

IDLE_EVENTS_MS = 100
"""How often a query that has nothing to do says so: Spark's default of ten seconds gives no median."""
KEPT_EVENTS = 1000
"""How many of these events a query keeps; more than one has."""


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
        """A whole topic into a sink, once."""
        started = time.perf_counter()
        frame = self._spark.read.format(source).options(**options).load()
        if columns:
            frame = frame.selectExpr(*columns)
        figures = self._to_noop(frame) if sink == "noop" else self._to_parquet(frame, rows)
        return {"rows": rows, "seconds": figures["ended"] - started}

    def _to_noop(self, frame: DataFrame) -> dict[str, float]:
        frame.write.format("noop").mode("overwrite").save()
        return {"ended": time.perf_counter()}

    def _to_parquet(self, frame: DataFrame, rows: int) -> dict[str, float]:
        path = self._directory / "table"
        try:
            frame.write.parquet(str(path))
            ended = time.perf_counter()
            found = sum(pyarrow.parquet.read_metadata(part).num_rows for part in path.glob("part-*.parquet"))
        finally:
            shutil.rmtree(path, ignore_errors=True)
        if found != rows:
            raise RuntimeError(f"{found} of {rows} rows are in the table")
        return {"ended": ended}

    def write(
        self, *, source: str, options: dict[str, str], rows: int, size: int, tasks: int
    ) -> dict[str, float]:
        """Rows that Spark makes as it goes, all with one value, to a topic."""
        value = functions.lit(bytearray(os.urandom(size))).alias("value")
        frame = self._spark.range(0, rows, 1, tasks).select(value)
        started = time.perf_counter()
        if source == "noop":
            self._to_noop(frame)
        else:
            frame.write.format(source).options(**options).save()
        return {"rows": rows, "seconds": time.perf_counter() - started}

    def triggers(
        self, *, source: str, options: dict[str, str], tuned: bool, partitions: int, batches: int,
        records: int, idle_seconds: float,
    ) -> dict[str, float]:  # fmt: skip
        """Small batches one after another, then nothing for a while."""
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
    """The first third of the batches is there to get warm."""
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
    """What a query costs that has nothing to do. Its progress says how long a look for records takes."""
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
        except Exception as failure:  # the bench notes it, and asks for the next
            answer({"error": f"{type(failure).__name__}: {failure}"})


if __name__ == "__main__":
    main()
