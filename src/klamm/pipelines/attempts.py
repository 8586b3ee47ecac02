"""Finds the attempt that a pipeline runs: makes the first one, goes on from the offsets in the table if the
checkpoint is lost, and begins an epoch when a batch has to run again. `state.py` says what attempts and
epochs are."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import (
    Definitions,
    IcebergSink,
    ParquetSink,
    Pipeline,
    Source,
    TableSink,
    TableSource,
)
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.graph import streams_of
from klamm.pipelines.locations import local_path, table_location
from klamm.pipelines.positions import Position, merged
from klamm.pipelines.project import Project
from klamm.pipelines.retry.topics import (
    RETRY_PARTITION,
    part_of,
    retry_topic,
    with_retry,
    with_retry_end,
)
from klamm.pipelines.sinks.folders import open_folders
from klamm.pipelines.sinks.writing import is_applied, written_table
from klamm.pipelines.state import Attempt, Epoch, State
from klamm.pipelines.table_sources import present_start, resolve_start, start_after
from klamm.pipelines.tables.table import Reached
from klamm.pipelines.tables.written import WrittenTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CannotGoOn(PipelineError):
    """A pipeline does not know where to go on, or its table is another pipeline's."""


def current_attempt(
    project: Project, state: State, definitions: Definitions, pipeline: Pipeline, spark: SparkSession
) -> Attempt:
    """The attempt to run."""
    found = state.attempt(pipeline.name)
    place = table_place(project, pipeline)
    if isinstance(pipeline.to, (TableSink, IcebergSink)):
        table = written_table(project, pipeline.to)
        reached = table.reached(project.group_of(pipeline.name))
        found = finish_replay(state, pipeline, found, reached)
        if reached is None:
            _refuse_a_foreign_table(project, state, pipeline, table, found, spark)
        elif found is None or _is_behind(state, pipeline, found, reached, spark):
            known = _known_to_the_table(project, state, definitions, pipeline, table, reached, spark)
            found = known or _go_on_from_the_table(project, definitions, pipeline, table, reached, found)
            state.keep_attempt(pipeline.name, found)
    elif found is None or (found.pipeline_id and found.table != place):
        _refuse_foreign_folders(project, pipeline, spark, found)
    if found is None:
        found = Attempt.first(first_starts(project, definitions, pipeline), place)
        state.keep_attempt(pipeline.name, found)
    elif found.table != place:
        found = replace(found, table=place)
        state.keep_attempt(pipeline.name, found)
    return _after_an_unfinished_batch(project, state, definitions, pipeline, found, spark)


def table_place(project: Project, pipeline: Pipeline) -> str | None:
    """Where the pipeline's table or folders are, relative to the project's folder if they lie below it; the
    name of an Iceberg table; None if the pipeline writes something else."""
    if isinstance(pipeline.to, IcebergSink):
        return pipeline.to.table
    if not isinstance(pipeline.to, (TableSink, ParquetSink)):
        return None
    location = table_location(project.tables, pipeline.to.table)
    path = local_path(location)
    if path is not None and path.is_relative_to(project.root):
        return str(path.relative_to(project.root))
    return location


# ---- tables


def finish_replay(
    state: State,
    pipeline: Pipeline,
    found: Attempt | None,
    reached: Reached | None,
    *,
    is_looking: bool = False,
) -> Attempt | None:
    """The present attempt. If a replay was killed after its rows were swapped in, its attempt is the present
    one; if it was killed before that, its attempt is given up. With `is_looking` nothing is written."""
    pending = state.next_attempt(pipeline.name)
    if pending is None:
        return found
    is_swapped = reached is not None and reached.attempt == pending.number
    if not is_looking:
        if is_swapped:
            state.keep_attempt(pipeline.name, pending)
        state.keep_next_attempt(pipeline.name, None)
    return pending if is_swapped else found


def _refuse_a_foreign_table(
    project: Project,
    state: State,
    pipeline: Pipeline,
    table: WrittenTable,
    found: Attempt | None,
    spark: SparkSession,
) -> None:
    """Raise if the table has no batch of this pipeline, although it should have one or has others."""
    if table.is_there() and not table.is_created_by(project.group_of(pipeline.name)):
        raise CannotGoOn(
            f"the table {table.location} has no batch of {pipeline.name}: another pipeline or program wrote "
            "it",
            advice="Move the table away, or name another table",
            place=pipeline.place,
        )
    if table.has_other_files():
        raise CannotGoOn(
            f"{table.location} has files that are not a Delta table, as parquet(…) writes them",
            advice="Name another table, or write parquet(…) as before",
            place=pipeline.place,
        )
    if found is None or found.table != table_place(project, pipeline):
        return
    checkpoint = Checkpoint(spark, state.checkpoint(pipeline.name, found))
    if checkpoint.last_finished() is not None:
        raise CannotGoOn(
            f"the table {table.location} is gone, but {pipeline.name} has written batches to it",
            advice="Restore the table, or make it anew: "
            f"klamm pipeline replay {pipeline.name} --from earliest",
            place=pipeline.place,
        )


def _is_behind(
    state: State,
    pipeline: Pipeline,
    found: Attempt,
    reached: Reached,
    spark: SparkSession,
) -> bool:
    """True if the table has batches that the state or the checkpoint does not know: they are lost, or old
    copies."""
    if found.number != reached.attempt:
        return found.number < reached.attempt
    begun = Checkpoint(spark, state.checkpoint(pipeline.name, found)).last_begun()
    return begun is None or begun < reached.batch


def _known_to_the_table(
    project: Project,
    state: State,
    definitions: Definitions,
    pipeline: Pipeline,
    table: WrittenTable,
    reached: Reached,
    spark: SparkSession,
) -> Attempt | None:
    """The attempt of the table's last batch, if its checkpoint is still there: the project was moved to
    another folder or machine, and its checkpoints are elsewhere."""
    pipeline_id, epochs = _epochs_in_the_table(project, definitions, pipeline, table)
    if not epochs:
        return None
    place = table_place(project, pipeline)
    found = Attempt(reached.attempt, table=place, pipeline_id=pipeline_id, epochs=epochs)
    return None if _is_behind(state, pipeline, found, reached, spark) else found


def _epochs_in_the_table(
    project: Project, definitions: Definitions, pipeline: Pipeline, table: WrittenTable
) -> tuple[str, tuple[Epoch, ...]]:
    """The id of the pipeline and its epochs, as the log of its table knows them. They decide which
    dead-letter records are of records that a later epoch has read again."""
    names = table.epochs(project.group_of(pipeline.name))
    pipeline_id = names[-1][0].rpartition(".")[0] if names else ""
    sources = streams_of(pipeline.name, definitions.nodes)
    epochs = []
    for name, position in names:
        its_id, _, number = name.rpartition(".")
        if its_id == pipeline_id and number.isdigit():
            start = {source.name: part_of(project, pipeline.name, source, position) for source in sources}
            epochs.append(Epoch(int(number), start))
    return pipeline_id, tuple(epochs)


def _go_on_from_the_table(
    project: Project,
    definitions: Definitions,
    pipeline: Pipeline,
    table: WrittenTable,
    reached: Reached,
    found: Attempt | None,
) -> Attempt:
    """A new attempt that begins at the offsets in the table."""
    sources = streams_of(pipeline.name, definitions.nodes)
    topics = Counter(topic for source in sources for topic in source.topics)
    if reached.keeps_state:
        reason = "keeps state (windows, joins, deduplication)"
    elif any(count > 1 for count in topics.values()):
        reason = "reads a topic through several sources, which may be at different offsets"
    else:
        reason = ""
    if reason:
        raise CannotGoOn(
            f"the checkpoint of {pipeline.name} is lost, or an old copy, and {pipeline.name} {reason}: it "
            "cannot go on from the offsets in its table",
            advice="Restore the checkpoint, or make the table anew: "
            f"klamm pipeline replay {pipeline.name} --from earliest",
            place=pipeline.place,
        )
    owner = project.group_of(pipeline.name)
    start = {
        source.name: with_retry(
            project,
            pipeline.name,
            source,
            start_after(project, source, table, owner),
            _retried(project, pipeline, source, table, owner),
        )
        for source in sources
    }
    number = max(reached.attempt, found.number if found is not None else 0) + 1
    pipeline_id, epochs = _epochs_in_the_table(project, definitions, pipeline, table)
    place = table_place(project, pipeline)
    return Attempt(number, start, place, pipeline_id or secrets.token_hex(4), epochs).again(start)


def _retried(
    project: Project, pipeline: Pipeline, source: Source | TableSource, table: WrittenTable, owner: str
) -> Position:
    """The place in the retry topic of a source that the table has reached."""
    topic = retry_topic(project, pipeline.name, source.name)
    return table.offsets(owner, {topic: [RETRY_PARTITION]})


# ---- folders


def _refuse_foreign_folders(
    project: Project, pipeline: Pipeline, spark: SparkSession, found: Attempt | None
) -> None:
    """Raise if the folder has batches that this pipeline has not written.

    Their numbers are the ones that our batches would get, so our batches would look published, and be lost.
    """
    if not isinstance(pipeline.to, ParquetSink):
        return
    folders = open_folders(spark, table_location(project.tables, pipeline.to.table))
    if folders.published():
        what_it_did = (
            "has not written any" if found is None else f"has written to {found.table or 'no table'}"
        )
        raise CannotGoOn(
            f"{folders.location} has batches, but {pipeline.name} {what_it_did}: another pipeline wrote "
            "them, or the project's state was deleted",
            advice="Move the folder away, name another one, or restore "
            f"{project.shared_state or project.state}",
            place=pipeline.place,
        )


# ---- epochs and starts


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
    if batch is None or is_applied(pipeline, project, attempt, checkpoint, batch, spark):
        return attempt
    # The checkpoint has one position per topic. If two sources read the same topic, a row is rather read
    # twice than not at all.
    before = merged(checkpoint.ends(batch - 1), max)
    start = {
        source.name: part_of(project, pipeline.name, source, before)
        for source in streams_of(pipeline.name, definitions.nodes)
    }
    begun = attempt.again(start if batch else attempt.start)
    state.keep_attempt(pipeline.name, begun)
    return begun


def first_starts(project: Project, definitions: Definitions, pipeline: Pipeline) -> dict[str, Position]:
    """The position at which each source begins, from its `start` argument."""
    return {
        source.name: with_retry_end(project, pipeline.name, source, resolve_start(project, source))
        for source in streams_of(pipeline.name, definitions.nodes)
    }


def present_starts(
    project: Project, definitions: Definitions, pipeline: Pipeline, attempt: Attempt
) -> dict[str, Position]:
    """The position at which the attempt begins, for all sources and partitions that exist now."""
    starts = {}
    for source in streams_of(pipeline.name, definitions.nodes):
        known = attempt.start.get(source.name)
        start = present_start(project, source, known)
        starts[source.name] = with_retry(project, pipeline.name, source, start, known or {})
    return starts
