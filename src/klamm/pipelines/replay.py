"""Replay: makes a pipeline read records again. `plan` says what a replay would do, `carry_out` does it.
Replays with an end are in `replay_range.py`.

The pipeline gets a new attempt with a new checkpoint, which begins at the given point. What happens to the
rows that were written before depends on the sink:

    table      the replay writes the new rows beside the table, and swaps them in with one commit
    topic      the next run writes the rows once more
    others     the next run adds the rows once more; delete the old ones first if you want them once

A table keeps the rows of its newest version that has no record from the given point on; the replay begins
where that version ended. Batches whose records are no longer in the topics stay as they are, since their rows
cannot be made again. A pipeline with state (windows, joins of streams, dropDuplicates) begins without it:
only a replay from the earliest record gives the result of a first run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from klamm.pipelines import frames
from klamm.pipelines.attempts import finish_replay, present_starts, table_place
from klamm.pipelines.callbacks import ensure_callbacks
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import (
    Definitions,
    IcebergSink,
    Pipeline,
    Source,
    TableSink,
    TableSource,
    TopicSink,
)
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.failures import explain
from klamm.pipelines.graph import streams_of
from klamm.pipelines.locations import local_path
from klamm.pipelines.positions import (
    EARLIEST_OFFSET,
    Position,
    is_gone,
    is_table,
    merged,
    of_topics,
    reaches,
)
from klamm.pipelines.project import Project
from klamm.pipelines.retry.topics import with_retry
from klamm.pipelines.runner import check_places, make_session
from klamm.pipelines.sinks.kinds import sink_text
from klamm.pipelines.sinks.writing import open_table, start_query, written_table
from klamm.pipelines.spark_sessions import session_meanwhile
from klamm.pipelines.starts import Point, parse_point, resolve
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.status import rows_too_late
from klamm.pipelines.table_sources import resolve_start
from klamm.pipelines.tables.columns import check_partition_columns
from klamm.pipelines.tables.replacing import (
    NOTHING,
    Kept,
    beside,
    discard,
    kept_versions,
    missing_files,
    newest_before,
    row_count,
    swap,
)
from klamm.pipelines.tables.table import Batch, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class ReplayRefused(PipelineError):
    """There is nothing to replay, or the replay would write wrong rows."""


class ReplayFailed(PipelineError):
    """The rows of a replay could not be written. The table is as it was."""


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay will do. A user should confirm the `warnings` before it is carried out."""

    pipeline: str
    sink: str
    attempt: int
    """The number of the new attempt."""
    start: dict[str, Position]
    """The position at which each source begins."""
    rebuilds: bool
    """Whether the replay itself writes the rows, beside a table. Otherwise the next run does."""
    base: int | None
    """The version of the table whose rows stay; None if none do."""
    version: int | None
    """The version of the table when the replay was planned; None if there was no table."""
    replaced_rows: int
    warnings: tuple[str, ...]


def plan(project: Project, pipeline: str, from_: Point, *, spark: SparkSession | None = None) -> ReplayPlan:
    """What a replay from this point would do. Changes nothing.

    Checkpoints that are not on this machine are read through Spark: with the given session, or a new one.
    """
    definitions = load_definitions(project)
    wanted = find_pipeline(definitions, pipeline)
    state = State(project)
    present = _present(project, state, wanted, is_looking=True)
    point = parse_point(from_) if isinstance(from_, str) else from_
    sources = streams_of(pipeline, definitions.nodes)
    _check_tables(pipeline, sources, point)
    starts = {
        source.name: resolve_start(project, source, _for_topics(point, source.topics)) for source in sources
    }
    warnings = []
    with session_for(project, spark, needed=local_path(project.checkpoints) is None) as session:
        checkpoint = Checkpoint(session, state.checkpoint(pipeline, present))
        if point != "earliest" and checkpoint.keeps_state():
            warnings.append(
                f"{pipeline} keeps state, and a replay begins without it: windows and joins that reach back "
                "before its start will be incomplete. A replay from earliest is exact"
            )
        if checkpoint.drops_late_rows():
            warnings.append(_late_rows_warning(pipeline, rows_too_late(state, pipeline, present.number)))
        reads_twice = reads_a_topic_twice(checkpoint)
        reached = _reached(checkpoint, present)
    if isinstance(wanted.to, TableSink):
        rebuilt = _rebuilt(project, wanted, open_table(project, wanted.to), point, starts)
        if rebuilt.base is not None and reads_twice:
            raise ReplayRefused(
                f"{pipeline} reads a topic through several sources, which may be at different offsets: only "
                "a replay of everything is exact",
                advice="Replay it from earliest",
            )
        warnings += rebuilt.warnings
        begins = rebuilt.first if rebuilt.base is None else rebuilt.base.position
        starts = {
            source.name: with_retry(project, pipeline, source, _begun(starts[source.name], rebuilt), begins)
            for source in sources
        }
    else:
        rebuilt = _Rebuilt()
        _check_all_named(point, starts)
        # What came through a retry topic is not in the topics that the point is about.
        begins = {} if point == "earliest" else reached
        starts = {
            source.name: with_retry(project, pipeline, source, starts[source.name], begins)
            for source in sources
        }
        what = "once more" if isinstance(wanted.to, TopicSink) else "in addition to those that it has"
        warnings.append(f"{sink_text(wanted.to)} gets the rows of the replay {what}")
    return ReplayPlan(
        pipeline=pipeline,
        sink=sink_text(wanted.to),
        attempt=present.number + 1,
        start=starts,
        rebuilds=isinstance(wanted.to, TableSink),
        base=rebuilt.base.version if rebuilt.base is not None else None,
        version=rebuilt.version,
        replaced_rows=rebuilt.rows,
        warnings=tuple(warnings),
    )


def carry_out(project: Project, planned: ReplayPlan, *, spark: SparkSession | None = None) -> int | None:
    """Do what the plan says. Raises ProjectBusy while the project runs. Returns how many rows were written
    beside the table and swapped in; None if the next run writes the rows."""
    check_places(project)
    state = State(project)
    definitions = load_definitions(project)
    wanted = find_pipeline(definitions, planned.pipeline)
    with (
        state.lock("replaying"),
        # A redrive meanwhile would add rows that the replay makes, too, or lose what it had added.
        state.lock("replaying", "redrive.lock"),
        session_for(project, spark, needed=planned.rebuilds) as session,
    ):
        present = _present(project, state, wanted)
        if present.number + 1 != planned.attempt:
            raise ReplayRefused(
                f"{planned.pipeline} was replayed after this replay was planned",
                advice="Plan the replay again",
            )
        if not isinstance(wanted.to, TableSink):
            state.keep_attempt(planned.pipeline, present.next(planned.start))
            return None
        assert session is not None
        table = open_table(project, wanted.to)
        newest = table.newest()
        if planned.version != (None if newest is None else newest.version()):
            raise ReplayRefused(
                f"{planned.pipeline} has run since the replay was planned", advice="Plan the replay again"
            )
        return _rebuild(project, state, definitions, wanted, table, present, planned, session)


# ---- tables


@dataclass(frozen=True)
class _Rebuilt:
    """What a replay does to a table: which version's rows stay, and how many others it replaces."""

    base: Kept | None = None
    version: int | None = None
    rows: int = 0
    first: Position = field(default_factory=dict)
    """Where the first batch of the table began, if its log still knows that."""
    warnings: tuple[str, ...] = ()


def _rebuilt(
    project: Project, pipeline: Pipeline, table: Table, point: Point, starts: Mapping[str, Position]
) -> _Rebuilt:
    newest = table.newest()
    if newest is None:
        return _Rebuilt()
    owner = project.group_of(pipeline.name)
    topics = of_topics(merged(starts.values(), min))
    oldest = resolve(project, topics, "earliest") if topics else {}
    latest = resolve(project, topics, "latest") if topics else {}
    end = table.offsets(owner, {topic: list(numbers) for topic, numbers in topics.items()})
    asked = _asked(point, starts)
    if point != "earliest" and not reaches(end, asked):
        raise ReplayRefused(
            "no batch of the table reaches that point: there is nothing to replay",
            advice="Give an earlier point; the next run reads newer records anyway",
        )
    versions = kept_versions(newest, owner)
    first = next((kept.position for kept in versions if kept.version == NOTHING), {})
    base = None if point == "earliest" else newest_before(versions, asked)
    base = None if base is not None and base.version == NOTHING else base
    begins = base.position if base is not None else first
    warnings: tuple[str, ...] = ()
    if is_gone(begins, end, oldest, latest):
        there = [
            kept
            for kept in reversed(versions)
            if kept.version != NOTHING and not is_gone(kept.position, end, oldest, latest)
        ]
        base = next((kept for kept in there if missing_files(table, kept.version) is not None), None)
        if base is None:
            raise ReplayRefused(
                f"records of all batches from there on are no longer in {', '.join(topics)}: nothing can be "
                "replayed",
                advice="Keep the table as it is, and let the pipeline write to a new table",
            )
        warnings = (
            f"{row_count(table, base.version):,} rows stay as they are: records of their batches are no "
            "longer in the topics",
        )
    if base is not None and any(is_table(topic) for start in starts.values() for topic in start):
        raise ReplayRefused(
            f"{pipeline.name} also reads a table, of which all rows are read again, and records of its "
            "topics are gone: nothing can be replayed",
            advice="Keep the table as it is, and let the pipeline write to a new table",
        )
    if base is not None and pipeline.mode != "append":
        raise ReplayRefused(
            f"{pipeline.name} has the mode {pipeline.mode!r}: only a replay of everything is exact",
            advice="Replay it from earliest",
        )
    if base is not None and (gone := missing_files(table, base.version)) != 0:
        what = "is not in its log any more" if gone is None else f"has lost {gone} files to vacuum"
        raise ReplayRefused(
            f"version {base.version} of the table, whose rows would stay, {what}",
            advice="Replay from a later point, or from earliest",
        )
    rows = row_count(table) - (row_count(table, base.version) if base is not None else 0)
    return _Rebuilt(base, newest.version(), rows, first, warnings)


def _rebuild(
    project: Project,
    state: State,
    definitions: Definitions,
    pipeline: Pipeline,
    table: Table,
    present: Attempt,
    planned: ReplayPlan,
    spark: SparkSession,
) -> int:
    """Write the rows beside the table, then swap them in and make the attempt the present one.

    If the process is killed before the swap, nothing has changed; the next replay begins anew. If it is
    killed after the swap, the next run makes the attempt the present one (`attempts.py`).
    """
    begun = present.next(planned.start)
    checkpoint = Checkpoint(spark, state.checkpoint(pipeline.name, begun))
    discard(table, begun.number)
    checkpoint.delete()
    state.keep_attempt(pipeline.name, replace(present, used_epochs=begun.epochs[-1].number))
    state.keep_next_attempt(pipeline.name, begun)
    ensure_callbacks(spark)
    into = beside(table, begun.number)
    try:
        frame = frames.build(
            pipeline,
            definitions,
            project,
            spark,
            streaming=True,
            starts=present_starts(project, definitions, pipeline, begun),
            attempt=begun,
        )
        frame = fitted(frame, pipeline, table, rows_stay=planned.base is not None)
        query = start_query(
            frame, pipeline, project, state, begun, once=True, on_rows=lambda batch, rows: None, into=into
        )
        wait_until_written(query, pipeline, project)
    except BaseException:
        state.keep_next_attempt(pipeline.name, None)
        discard(table, begun.number)
        raise
    owner = project.group_of(pipeline.name)
    last = into.last_batch(owner, begun.number)
    start = merged(begun.start.values(), min)
    ends = checkpoint.ends(last) if last is not None else []
    batch = Batch(
        owner,
        begun.number,
        -1 if last is None else last,
        start,
        merged([start, *ends], max),
        begun.epoch,
        checkpoint.keeps_state(),
    )
    rows = swap(table, begun.number, planned.base, batch)
    state.keep_attempt(pipeline.name, begun)
    state.keep_next_attempt(pipeline.name, None)
    return rows


def wait_until_written(query: StreamingQuery, pipeline: Pipeline, project: Project) -> None:
    """Wait for the query of a replay. Raises ReplayFailed if it fails."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        failure = explain(str(error), project.root)
        raise ReplayFailed(
            f"{pipeline.name} was not replayed, and its table is as it was: {failure.summary}",
            place=failure.place or pipeline.place,
        ) from error


def fitted(frame: DataFrame, pipeline: Pipeline, table: Table, *, rows_stay: bool) -> DataFrame:
    """The frame with its columns as the table spells them. Raises if the table cannot have the rows: with
    rows that stay, types must not change; partition columns must not change at all."""
    assert isinstance(pipeline.to, TableSink)
    newest = table.newest()
    if rows_stay:
        fits = table.fit(frame.schema, pipeline.to.partition_by, pipeline.place)
        return frame.withColumnsRenamed(fits.renamed) if fits is not None and fits.renamed else frame
    if newest is not None:
        its_partitions = newest.metadata().partition_columns
        check_partition_columns(pipeline.to.partition_by, its_partitions, table.location, pipeline.place)
    return frame


def _begun(position: Position, rebuilt: _Rebuilt) -> Position:
    """Where a source begins: where the version that stays ended, new partitions at their oldest record. If no
    version stays, it begins where the first batch began, or earlier if that was asked for."""
    begins = rebuilt.first if rebuilt.base is None else rebuilt.base.position
    begun: Position = {}
    for topic, partitions in position.items():
        if is_table(topic):
            begun[topic] = dict(partitions)
            continue
        for number, asked in partitions.items():
            known = begins.get(topic, {}).get(number, EARLIEST_OFFSET)
            is_before = rebuilt.base is None and 0 <= asked < known
            begun.setdefault(topic, {})[number] = asked if is_before else known
    return begun


# ---- all sinks


def _present(project: Project, state: State, pipeline: Pipeline, *, is_looking: bool = False) -> Attempt:
    """The pipeline's present attempt. If the state is lost, its table tells the number."""
    found = state.attempt(pipeline.name)
    if isinstance(pipeline.to, (TableSink, IcebergSink)):
        reached = written_table(project, pipeline.to).reached(project.group_of(pipeline.name))
        found = finish_replay(state, pipeline, found, reached, is_looking=is_looking)
        if reached is not None and (found is None or found.number < reached.attempt):
            lost = Attempt.first({}, table_place(project, pipeline))
            return Attempt(reached.attempt, {}, lost.table, lost.pipeline_id)
    if found is None:
        raise ReplayRefused(
            f"{pipeline.name} has not run yet: there is nothing to replay",
            advice="Its first run begins at the start= of its sources",
        )
    check_same_table(project, pipeline, found)
    return found


def check_same_table(project: Project, pipeline: Pipeline, attempt: Attempt) -> None:
    """Raise if the pipeline writes elsewhere than in its attempt: what is there may be another's."""
    if attempt.pipeline_id and attempt.table != table_place(project, pipeline):
        raise ReplayRefused(
            f"{pipeline.name} writes to another table than in its last run; its batches may be foreign",
            advice="Run the pipeline first",
        )


def _late_rows_warning(pipeline: str, too_late: int) -> str:
    dropped = f" (its last run dropped {too_late:,})" if too_late else ""
    return (
        f"{pipeline} drops rows that come later than its watermark allows{dropped}. Which rows come too late "
        "depends on the batches, and a replay reads the records in other batches: windows, joins and "
        "deduplication may have other results than before"
    )


def _reached(checkpoint: Checkpoint, present: Attempt) -> Position:
    """How far the present attempt has come in finished batches."""
    last = checkpoint.last_finished()
    ends = [] if last is None else checkpoint.ends(last)
    return merged([*present.start.values(), *ends], max)


def find_pipeline(definitions: Definitions, name: str) -> Pipeline:
    """The pipeline of this name. Raises ReplayRefused if there is none."""
    found = definitions.pipelines.get(name)
    if found is None:
        raise ReplayRefused(
            f"there is no pipeline called {name!r}", advice=f"There are {', '.join(definitions.pipelines)}"
        )
    return found


@contextmanager
def session_for(
    project: Project, spark: SparkSession | None, *, needed: bool
) -> Iterator[SparkSession | None]:
    """The given session, or a new one if one is needed."""
    if spark is not None or not needed:
        yield spark
        return
    with session_meanwhile(project, make_session) as made:
        yield made


def _check_tables(pipeline: str, sources: Sequence[Source | TableSource], point: Point) -> None:
    """Raise if a pipeline that reads a table is to be replayed from some point: the rows of a table are not
    in the order of time, and merged files have rows of many versions."""
    tables = [source.table for source in sources if isinstance(source, TableSource)]
    if tables and point != "earliest":
        raise ReplayRefused(
            f"{pipeline} reads the table {', '.join(tables)}, of which only all rows can be read again",
            advice="Replay it from earliest",
        )


def _for_topics(point: Point, topics: Iterable[str]) -> Point:
    if isinstance(point, Mapping):
        return {topic: offsets for topic, offsets in point.items() if topic in topics}
    return point


def _asked(point: Point, starts: Mapping[str, Position]) -> Position:
    """The point, per partition. Partitions that were not asked for are not in it."""
    if isinstance(point, Mapping):
        return {topic: dict(offsets) for topic, offsets in point.items()}
    return merged(starts.values(), min)


def _check_all_named(point: Point, starts: Mapping[str, Position]) -> None:
    if not isinstance(point, Mapping):
        return
    for position in starts.values():
        for topic, partitions in position.items():
            missing = sorted(set(partitions) - set(point.get(topic, {})), key=int)
            if missing:
                raise ReplayRefused(
                    f"the offsets do not name partition {', '.join(missing)} of {topic}",
                    advice="Name every partition, or give a time",
                )


def reads_a_topic_twice(checkpoint: Checkpoint) -> bool:
    """True if several sources of the query read the same topic. A batch has one position per topic."""
    last = checkpoint.last_begun()
    topics: Sequence[str] = [] if last is None else [topic for end in checkpoint.ends(last) for topic in end]
    return len(topics) != len(set(topics))
