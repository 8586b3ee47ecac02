"""Starts the attempt that a pipeline runs: makes the first one, finishes a replay that was interrupted, and
begins an epoch when a batch has to run again. `state.py` says what attempts and epochs are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import Definitions, ParquetSink, Pipeline
from klamm.pipelines.graph import sources_of
from klamm.pipelines.hadoop import local_path
from klamm.pipelines.positions import Position, completed, merged
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.layout import parse_folders
from klamm.pipelines.sinks.tables import TableError, open_table, table_location
from klamm.pipelines.sinks.writing import is_applied
from klamm.pipelines.starts import resolve
from klamm.pipelines.state import Attempt, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def current_attempt(
    project: Project, state: State, definitions: Definitions, pipeline: Pipeline, spark: SparkSession
) -> Attempt:
    """The attempt to run. Makes the first one, and finishes a replay that was interrupted."""
    found = state.attempt(pipeline.name)
    table = table_place(project, pipeline)
    if found is None:
        _refuse_a_table_of_another_pipeline(project, pipeline, spark, "has not written any")
        found = Attempt.first(first_starts(project, definitions, pipeline), table)
        state.keep_attempt(pipeline.name, found)
    elif found.table != table:
        if found.pipeline_id:
            _refuse_a_table_of_another_pipeline(
                project, pipeline, spark, f"has written to {found.table or 'no table'}"
            )
            BatchLog(state.batches_file(pipeline.name)).cut(0, 0)
        found = replace(found, table=table)
        state.keep_attempt(pipeline.name, found)
    if found.cut is not None:
        found = finish_retiring(project, state, pipeline, found, spark)
    return _after_an_unfinished_batch(project, state, definitions, pipeline, found, spark)


def table_place(project: Project, pipeline: Pipeline) -> str | None:
    """Where the pipeline's Parquet table is, relative to the project's folder if it lies below it; None if
    the pipeline writes something else."""
    if not isinstance(pipeline.to, ParquetSink):
        return None
    location = table_location(project.tables, pipeline.to.table)
    path = local_path(location)
    if path is not None and path.is_relative_to(project.root):
        return str(path.relative_to(project.root))
    return location


def _refuse_a_table_of_another_pipeline(
    project: Project, pipeline: Pipeline, spark: SparkSession, what_it_did: str
) -> None:
    """Raise if the table has batches that this pipeline has not written.

    Their numbers are the ones that our batches would get, so our batches would look published, and be lost.
    """
    if not isinstance(pipeline.to, ParquetSink):
        return
    table = open_table(spark, table_location(project.tables, pipeline.to.table))
    if table.folders():
        raise TableError(
            f"the table {table.location} has batches, but {pipeline.name} {what_it_did}: another pipeline "
            "wrote them, or the project's state was deleted",
            advice=f"Move the table away, name another table, or restore {project.state}",
            place=pipeline.place,
        )


def _after_an_unfinished_batch(
    project: Project,
    state: State,
    definitions: Definitions,
    pipeline: Pipeline,
    attempt: Attempt,
    spark: SparkSession,
) -> Attempt:
    """The attempt, with a new epoch if a batch has to run again.

    The new epoch makes the dead-letter records of the second run count instead of those of the first. A batch
    that its sink already has does not run again, even if Spark's checkpoint does not know that it is done.
    """
    checkpoint = Checkpoint(spark, state.checkpoint(pipeline.name, attempt))
    batch = checkpoint.unfinished()
    if batch is None or is_applied(pipeline, project, state, attempt, checkpoint, batch, spark):
        return attempt
    # The checkpoint has one position per topic. If two sources read the same topic, a row is rather read
    # twice than not at all.
    before = merged(checkpoint.ends(batch - 1), max)
    start = {
        source.name: {topic: before[topic] for topic in source.topics if topic in before}
        for source in sources_of(pipeline.name, definitions.nodes)
    }
    begun = attempt.again(start if batch else attempt.start)
    state.keep_attempt(pipeline.name, begun)
    return begun


def first_starts(project: Project, definitions: Definitions, pipeline: Pipeline) -> dict[str, Position]:
    """The position at which each source begins, from its `start` argument."""
    return {
        source.name: resolve(project, source.topics, source.start)
        for source in sources_of(pipeline.name, definitions.nodes)
    }


def present_starts(
    project: Project, definitions: Definitions, pipeline: Pipeline, attempt: Attempt
) -> dict[str, Position]:
    """The position at which the attempt begins, for all sources and partitions that exist now."""
    starts = {}
    for source in sources_of(pipeline.name, definitions.nodes):
        known = attempt.start.get(source.name)
        if known is None:
            starts[source.name] = resolve(project, source.topics, source.start)
            continue
        there = resolve(project, source.topics, "earliest")
        starts[source.name] = completed(
            known, {topic: sorted(map(int, numbers)) for topic, numbers in there.items()}
        )
    return starts


def finish_retiring(
    project: Project, state: State, pipeline: Pipeline, attempt: Attempt, spark: SparkSession | None
) -> Attempt:
    """Remove the batches that a replay will write again from the table and its batch log, and note that."""
    if isinstance(pipeline.to, ParquetSink) and attempt.cut is not None:
        if retired := parse_folders(attempt.retire):
            table = open_table(spark, table_location(project.tables, pipeline.to.table))
            table.retire(retired, attempt.number)
        BatchLog(state.batches_file(pipeline.name)).cut(*attempt.cut)
    done = replace(attempt, retire=(), cut=None)
    state.keep_attempt(pipeline.name, done)
    return done
