"""The life of a pipeline from its first start on, and from one replay to the next."""

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
from klamm.pipelines.state import Generation, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def current_generation(
    project: Project, state: State, definitions: Definitions, pipeline: Pipeline, spark: SparkSession
) -> Generation:
    """The generation to run. The first is made here; what a replay has left to do is done here."""
    found = state.generation(pipeline.name)
    table = table_place(project, pipeline)
    if found is None:
        _refuse_a_strangers_table(project, pipeline, spark, "has not written any")
        found = Generation.first(first_starts(project, definitions, pipeline), table)
        state.keep_generation(pipeline.name, found)
    elif found.table != table:
        if found.lineage:
            _refuse_a_strangers_table(project, pipeline, spark, f"has written to {found.table or 'no table'}")
            BatchLog(state.batches_file(pipeline.name)).cut(0, 0)
        found = replace(found, table=table)
        state.keep_generation(pipeline.name, found)
    if found.cut is not None:
        found = finish_retiring(project, state, pipeline, found, spark)
    return _after_an_unfinished_batch(project, state, definitions, pipeline, found, spark)


def table_place(project: Project, pipeline: Pipeline) -> str | None:
    """Where a pipeline's table of ours is; below the project, wherever that is."""
    if not isinstance(pipeline.to, ParquetSink):
        return None
    location = table_location(project.tables, pipeline.to.table)
    path = local_path(location)
    if path is not None and path.is_relative_to(project.root):
        return str(path.relative_to(project.root))
    return location


def _refuse_a_strangers_table(
    project: Project, pipeline: Pipeline, spark: SparkSession, what_it_did: str
) -> None:
    """Its batches have the numbers that ours would get: ours would be taken for published, and be lost."""
    if not isinstance(pipeline.to, ParquetSink):
        return
    table = open_table(spark, table_location(project.tables, pipeline.to.table))
    if table.folders():
        raise TableError(
            f"the table {table.location} has batches, but {pipeline.name} {what_it_did}: they are another "
            "pipeline's, or the project's state is gone",
            advice=f"Move the table away, name another one, or put {project.state} back",
            place=pipeline.place,
        )


def _after_an_unfinished_batch(
    project: Project,
    state: State,
    definitions: Definitions,
    pipeline: Pipeline,
    generation: Generation,
    spark: SparkSession,
) -> Generation:
    """With a new life if a batch is to be made again: what it refuses and takes counts then, and not what it
    did the first time. A batch that its sink has is not made again, whatever Spark knows of it."""
    checkpoint = Checkpoint(spark, state.checkpoint(pipeline.name, generation))
    batch = checkpoint.unfinished()
    if batch is None or is_applied(pipeline, project, state, generation, checkpoint, batch, spark):
        return generation
    # Of two sources of one topic it is not known which is where: rather a row twice than not at all.
    before = merged(checkpoint.ends(batch - 1), max)
    start = {
        source.name: {topic: before[topic] for topic in source.topics if topic in before}
        for source in sources_of(pipeline.name, definitions.nodes)
    }
    begun = generation.again(start if batch else generation.start)
    state.keep_generation(pipeline.name, begun)
    return begun


def first_starts(project: Project, definitions: Definitions, pipeline: Pipeline) -> dict[str, Position]:
    """Where each source begins, as the source says."""
    return {
        source.name: resolve(project, source.topics, source.start)
        for source in sources_of(pipeline.name, definitions.nodes)
    }


def present_starts(
    project: Project, definitions: Definitions, pipeline: Pipeline, generation: Generation
) -> dict[str, Position]:
    """Where the generation begins, for all sources and partitions there are by now."""
    starts = {}
    for source in sources_of(pipeline.name, definitions.nodes):
        known = generation.start.get(source.name)
        if known is None:
            starts[source.name] = resolve(project, source.topics, source.start)
            continue
        there = resolve(project, source.topics, "earliest")
        starts[source.name] = completed(
            known, {topic: sorted(map(int, numbers)) for topic, numbers in there.items()}
        )
    return starts


def finish_retiring(
    project: Project, state: State, pipeline: Pipeline, generation: Generation, spark: SparkSession | None
) -> Generation:
    """Take out of the table and its log what a replay makes anew, and note that it is done."""
    if isinstance(pipeline.to, ParquetSink) and generation.cut is not None:
        if retired := parse_folders(generation.retire):
            table = open_table(spark, table_location(project.tables, pipeline.to.table))
            table.retire(retired, generation.number)
        BatchLog(state.batches_file(pipeline.name)).cut(*generation.cut)
    done = replace(generation, retire=(), cut=None)
    state.keep_generation(pipeline.name, done)
    return done
