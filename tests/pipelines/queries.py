"""Running what was built as a streaming query: until it has read all there is, its rows kept in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

import klamm
from klamm.pipelines import frames
from klamm.pipelines.counting import NodeCounts, read_counts
from klamm.pipelines.definitions import Pipeline
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.project import Project

CAUGHT_UP_SECONDS = 120


def build(project: Project, name: str, spark: SparkSession, **arguments: Any) -> DataFrame:
    definitions = load_definitions(project)
    arguments = {"streaming": True, **arguments}
    return frames.build(definitions.nodes[name], definitions, project, spark, **arguments)


def run_once(project: Project, name: str, spark: SparkSession) -> tuple[list[Row], dict[str, NodeCounts]]:
    """The rows that a pipeline has written in all its batches, and what it counted, by node.

    Each batch is collected in the driver, so that what a sink does with it is not what is tested.
    """
    rows: list[Row] = []
    frame = build(project, name, spark)
    pipeline = load_definitions(project).nodes[name]
    assert isinstance(pipeline, Pipeline)
    checkpoint = Path(project.checkpoints) / name
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .outputMode(pipeline.mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(CAUGHT_UP_SECONDS), "the query did not end"
    counts: dict[str, NodeCounts] = {}
    for progress in query.recentProgress:
        for node in read_counts(_observed(progress)):
            counts[node.node] = _sum(counts.get(node.node), node)
    return rows, counts


def _observed(progress: Any) -> dict[str, dict[str, object]]:
    import json

    found: dict[str, dict[str, object]] = json.loads(progress.json)["observedMetrics"]
    return found


def _sum(known: NodeCounts | None, more: NodeCounts) -> NodeCounts:
    if known is None:
        return more
    names = {*known.rules, *more.rules}
    return NodeCounts(
        node=more.node,
        rows=known.rows + more.rows,
        undecodable=known.undecodable + more.undecodable,
        dead_letters=known.dead_letters + more.dead_letters,
        unknown_fields=known.unknown_fields + more.unknown_fields,
        unknown_field=more.unknown_field or known.unknown_field,
        rules={name: known.rules.get(name, 0) + more.rules.get(name, 0) for name in names},
    )


def produce(bootstrap: str, topic: str, *values: str | bytes | None, key: str | None = None) -> None:
    """Values in order, to partition 0."""
    with klamm.Producer(bootstrap) as producer:
        for value in values:
            raw = value.encode() if isinstance(value, str) else value
            headers = {"trace": b"t1"}
            producer.send(topic, raw, key=key.encode() if key else None, partition=0, headers=headers)
