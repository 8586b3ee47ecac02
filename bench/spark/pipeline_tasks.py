"""What a session of the bench does with a project of pipelines: batches of a stream, and what decoding and
rules cost.

The project has orders as JSON, decoded with a schema, one rule whose broken rows go to the dead-letter topic,
and a table.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from klamm.pipelines import frames
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.project import Project
from klamm.pipelines.runner import SETTINGS, run

_TOML = """
[project]
name = "{name}"
bootstrap = "{bootstrap}"

[spark]
master = "{master}"
"""

_PIPELINES = """
from klamm.pipelines import expect, pipeline, source, table

SCHEMA = (
    "order_id STRING, customer STRING, item STRING, quantity BIGINT, amount DOUBLE, at TIMESTAMP"
)


@source(topic="{topic}", schema=SCHEMA, undecodable="drop", read={read})
def decoded(rows):
    return rows


@source(topic="{topic}", schema=SCHEMA, read={read})
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
def orders(rows):
    return rows


@source(topic="{topic}", format="binary", read={read})
def undecoded(rows):
    return rows


@pipeline(to=table("orders"))
def orders_table(orders):
    return orders
"""


def make_project(
    folder: Path, bootstrap: str, topic: str, master: str, *, batch_rows: int | None = None
) -> None:
    """`batch_rows` is how many records a batch of a stream has; without it a batch has all that are there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pipelines").mkdir(parents=True)
    toml = _TOML.format(name=topic, bootstrap=bootstrap, master=master)
    (folder / "klamm.toml").write_text(toml)
    read = {"maxOffsetsPerTrigger": batch_rows} if batch_rows else {}
    (folder / "pipelines/orders.py").write_text(_PIPELINES.format(topic=topic, read=read))


def small_batches(spark: SparkSession, folder: str) -> dict[str, float]:
    """Run the project until all records are in its table. Times of its batches, in milliseconds; the first
    third of them warms up and is not counted. The records of each batch are there when it is triggered."""
    for name, value in SETTINGS.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    queries: dict[str, StreamingQuery] = {}

    def note(_: Any) -> None:
        queries.update({query.name: query for query in spark.streams.active})

    (status,) = run(
        Project.load(folder), once=True, names=["orders_table"], on_status=note, upkeep=None, spark=spark
    )
    if status.state != "finished":
        raise RuntimeError(f"the pipeline {status.state}: {status.error}")
    progress = [one for one in queries["orders_table"].recentProgress if one.numInputRows]
    durations = [one.durationMs for one in progress[len(progress) // 3 :]]

    def middle(*names: str) -> float:
        return statistics.median(sum(one.get(name, 0) for name in names) for one in durations)

    return {
        "batches": len(progress),
        "batch_ms": middle("triggerExecution"),
        "tasks_and_commit_ms": middle("addBatch"),
        "offsets_ms": middle("latestOffset", "getBatch", "queryPlanning"),
        "checkpoint_ms": middle("walCommit", "commitOffsets"),
    }


def decode(spark: SparkSession, folder: str, node: str) -> dict[str, float]:
    """Read all records of the topic through one of the project's sources, to nowhere."""
    project = Project.load(folder)
    definitions = load_definitions(project)
    started = time.perf_counter()
    frame = frames.build(definitions.nodes[node], definitions, project, spark, streaming=False)
    frame.drop("_key", "_value", "_headers").write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - started}
