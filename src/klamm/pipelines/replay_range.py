"""Replay of a range: makes the rows of some records anew, beside the running pipeline. `plan_range` says what
that would do, `carry_out_range` does it.

A query of its own, with a checkpoint of its own, reads the records from the beginning of the range up to its
end and writes their rows beside the table. Then one commit puts these rows in the place of all rows of the
range (`tables/range_replacing.py`). The pipeline's attempt, its offsets and its state are not touched, so
the pipeline may run meanwhile; the range ends at the latest where the pipeline has come.

A replay that is killed before the commit has changed nothing, and one that is killed after it has done all.
Either way the next one removes what it has left (`_tidy_up`).

Redrives wait meanwhile: they have the same lock. Rows of dead-letter records that were redriven into the
table are replaced like others, as they tell their original records.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from klamm.pipelines import frames
from klamm.pipelines.attempts import finish_replay
from klamm.pipelines.callbacks import ensure_callbacks
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import Definitions, Pipeline, Source, TableSink
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.graph import streams_of
from klamm.pipelines.locations import local_path
from klamm.pipelines.positions import Position, merged
from klamm.pipelines.project import Project
from klamm.pipelines.range_points import AskedRanges, named
from klamm.pipelines.redriven_topics import check_sent_back, dead_letter_ends
from klamm.pipelines.replay import (
    ReplayFailed,
    ReplayRefused,
    check_same_table,
    find_pipeline,
    fitted,
    reads_a_topic_twice,
    session_for,
    wait_until_written,
)
from klamm.pipelines.runner import check_places
from klamm.pipelines.sinks.kinds import sink_text
from klamm.pipelines.sinks.writing import open_table, start_query
from klamm.pipelines.starts import Point, resolve
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.tables import ranges as ranges_
from klamm.pipelines.tables.files import Store
from klamm.pipelines.tables.range_replacing import (
    Replay,
    Swapped,
    count_inside,
    is_in,
    replays_in,
    swap_range,
)
from klamm.pipelines.tables.ranges import COORDINATES, Ranges, each_range
from klamm.pipelines.tables.replacing import beside, discard, folder_of
from klamm.pipelines.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangePlan:
    """What the replay of a range will do. A user should confirm the `warnings` before it is carried out."""

    pipeline: str
    sink: str
    ranges: Ranges
    """What is read, by topic and partition: the first offset, and the one after the last."""
    records: int
    replaced_rows: int
    attempt: int
    """The pipeline's attempt when the replay was planned."""
    number: int
    """Which replay of a range of this table it is."""
    warnings: tuple[str, ...]


def plan_range(
    project: Project, pipeline: str, from_: Point, to: Point, *, spark: SparkSession | None = None
) -> RangePlan:
    """What a replay from one point up to, but without, another would do. Changes nothing.

    Checkpoints that are not on this machine are read through Spark: with the given session, or a new one.
    """
    definitions = load_definitions(project)
    wanted = find_pipeline(definitions, pipeline)
    sources = _sources(definitions, wanted)
    table = _table(project, wanted)
    state = State(project)
    present = _present(project, state, wanted, table)
    with session_for(project, spark, needed=local_path(project.checkpoints) is None) as session:
        if reads_a_topic_twice(Checkpoint(session, state.checkpoint(pipeline, present))):
            raise _reads_twice(wanted)
    _check_table(project, wanted, table)
    readers = _readers(sources)
    asked = AskedRanges(project, sorted(readers), present, table, project.group_of(pipeline))
    ranges = asked.ranges(from_, to)
    inside = count_inside(table, ranges)
    if inside.without_record:
        raise ReplayRefused(
            f"{inside.without_record:,} rows of the table do not tell, by {', '.join(COORDINATES)}, from "
            "which record they come: those of the range cannot be found",
            advice="Replay without --to",
        )
    warnings = [*asked.warnings, *check_sent_back(project, pipeline, readers, present, table, ranges)]
    return RangePlan(
        pipeline=pipeline,
        sink=sink_text(wanted.to),
        ranges=ranges,
        records=ranges_.count_records(ranges),
        replaced_rows=inside.rows,
        attempt=present.number,
        number=replays_in(table, project.group_of(pipeline)) + 1,
        warnings=tuple(warnings),
    )


def carry_out_range(project: Project, planned: RangePlan, *, spark: SparkSession | None = None) -> Swapped:
    """Do what the plan says. The project may run meanwhile. Raises ProjectBusy during a redrive or another
    replay."""
    check_places(project)
    state = State(project)
    definitions = load_definitions(project)
    wanted = find_pipeline(definitions, planned.pipeline)
    sources = _sources(definitions, wanted)
    table = _table(project, wanted)
    with (
        state.lock("replaying a range", "redrive.lock"),
        session_for(project, spark, needed=True) as session,
    ):
        assert session is not None
        _tidy_up(project, state, wanted, table, session)
        present = _present(project, state, wanted, table)
        number = replays_in(table, project.group_of(wanted.name)) + 1
        if (present.number, number) != (planned.attempt, planned.number):
            raise ReplayRefused(
                f"{wanted.name} was replayed after this replay was planned", advice="Plan the replay again"
            )
        check_sent_back(project, wanted.name, _readers(sources), present, table, planned.ranges)
        begun = replace(present, replay=secrets.token_hex(8), start=_starts(project, sources, table, planned))
        state.keep_range_replay(wanted.name, begun)
        try:
            return _rebuild(project, state, definitions, wanted, table, begun, planned, session)
        finally:
            try:
                _tidy_up(project, state, wanted, table, session)
            except Exception as error:  # what the replay has done is more important
                logger.warning("not all files of a replay were removed; the next one tries again: %s", error)


def _rebuild(
    project: Project,
    state: State,
    definitions: Definitions,
    pipeline: Pipeline,
    table: Table,
    begun: Attempt,
    planned: RangePlan,
    spark: SparkSession,
) -> Swapped:
    """Write the rows beside the table, then put them in the place of the old ones."""
    ensure_callbacks(spark)
    ends = ranges_.ends(planned.ranges)
    frame = frames.build(
        pipeline,
        definitions,
        project,
        spark,
        streaming=True,
        starts=begun.start,
        stops={
            source.name: {topic: ends[topic] for topic in source.topics if topic in ends}
            for source in _sources(definitions, pipeline)
        },
        attempt=begun,
    )
    if missing := [name for name in COORDINATES if name not in frame.columns]:
        raise ReplayRefused(
            f"the rows of {pipeline.name} have no {', '.join(missing)} now: a table whose rows do not tell "
            "their records can only be replayed as a whole",
            advice="Keep these columns, or replay without --to",
        )
    frame = fitted(frame, pipeline, table, rows_stay=True)
    already_bad = dead_letter_ends(project)  # before the first new dead-letter record
    into = beside(table, begun.replay)
    query = start_query(
        frame, pipeline, project, state, begun, once=True, on_rows=lambda batch, rows: None, into=into
    )
    try:
        wait_until_written(query, pipeline, project)
    except BaseException:
        with suppress(Exception):  # its JVM may be gone
            query.stop()
        raise
    _check_done(pipeline, Checkpoint(spark, state.checkpoint(pipeline.name, begun)), planned.ranges)
    return swap_range(
        table,
        Replay(
            project.group_of(pipeline.name),
            planned.number,
            begun.replay,
            planned.ranges,
            project.dead_letters,
            already_bad,
        ),
    )


def _tidy_up(project: Project, state: State, pipeline: Pipeline, table: Table, spark: SparkSession) -> None:
    """Remove what a replay has left, whether it was finished, failed or was killed."""
    found = state.range_replay(pipeline.name)
    if found is None:
        return
    if is_in(table, project.group_of(pipeline.name), found.replay):
        # Its files are the table's now; its log is of no use.
        Store(table.location, table.options).delete_folder(f"{folder_of(found.replay)}/_delta_log")
    else:
        discard(table, found.replay)
    Checkpoint(spark, state.checkpoint(pipeline.name, found)).delete()
    state.keep_range_replay(pipeline.name, None)


# ---- which pipelines


def _sources(definitions: Definitions, pipeline: Pipeline) -> list[Source]:
    """The sources of a pipeline. Raises if they cannot be read from one point to another."""
    streams = streams_of(pipeline.name, definitions.nodes)
    sources = [each for each in streams if isinstance(each, Source)]
    if tables := [each.table for each in streams if not isinstance(each, Source)]:
        raise ReplayRefused(
            f"{pipeline.name} reads the table {', '.join(tables)}, of which only all rows can be read again",
            advice="Replay it from earliest, without --to",
        )
    topics = Counter(topic for source in sources for topic in source.topics)
    if any(count > 1 for count in topics.values()):
        raise _reads_twice(pipeline)
    return sources


def _readers(sources: Sequence[Source]) -> dict[str, list[str]]:
    """The names of the sources by topic. No topic has two."""
    return {topic: [source.name] for source in sources for topic in source.topics}


def _reads_twice(pipeline: Pipeline) -> ReplayRefused:
    return ReplayRefused(
        f"{pipeline.name} reads a topic through several sources, which may be at different offsets: only a "
        "replay of everything is exact",
        advice="Replay it from earliest, without --to",
    )


def _table(project: Project, pipeline: Pipeline) -> Table:
    """The table of a pipeline. Raises if rows of single records cannot be replaced there."""
    if not isinstance(pipeline.to, TableSink):
        raise ReplayRefused(
            f"{pipeline.name} writes to {sink_text(pipeline.to)}: rows of a range can only be replaced in "
            "tables",
            advice="Replay it without --to",
        )
    if pipeline.mode != "append":
        raise ReplayRefused(
            f"{pipeline.name} has the mode {pipeline.mode!r}: only a replay of everything is exact",
            advice="Replay it from earliest, without --to",
        )
    return open_table(project, pipeline.to)


def _present(project: Project, state: State, pipeline: Pipeline, table: Table) -> Attempt:
    """The pipeline's attempt, which stays the present one. Its epochs decide which redriven records are
    skipped, so it must be that of the table."""
    reached = table.reached(project.group_of(pipeline.name))
    if reached is None:
        raise ReplayRefused(
            f"{pipeline.name} has committed no batch to its table yet: nothing says how far it has come",
            advice="Its first run begins at the start= of its sources",
        )
    if reached.keeps_state:
        raise ReplayRefused(
            f"{pipeline.name} keeps state (windows, joins, deduplication), which a range would begin without",
            advice="Replay it from earliest, without --to",
        )
    found = finish_replay(state, pipeline, state.attempt(pipeline.name), reached, is_looking=True)
    if found is None or found.number < reached.attempt:
        raise ReplayRefused(
            f"the project's state does not know the last attempt of {pipeline.name}",
            advice="Run the pipeline first: it finds its state again",
        )
    check_same_table(project, pipeline, found)
    return found


def _check_table(project: Project, pipeline: Pipeline, table: Table) -> None:
    newest = table.newest()
    there = {each.name for each in newest.schema().fields} if newest is not None else set()
    if missing := [name for name in COORDINATES if name not in there]:
        raise ReplayRefused(
            f"the table {table.location} has no {', '.join(missing)}: its rows do not tell from which "
            "records they come",
            advice="Replay without --to; a pipeline that keeps these columns can have a range replayed",
        )


# ---- where its query begins


def _starts(
    project: Project, sources: Iterable[Source], table: Table, planned: RangePlan
) -> dict[str, Position]:
    """Where each source begins. Partitions outside of the range begin where the pipeline has come, and end
    there, too."""
    starts = ranges_.starts(planned.ranges)
    owner = project.group_of(planned.pipeline)
    found: dict[str, Position] = {}
    for source in sources:
        newest = resolve(project, source.topics, "latest")
        oldest = resolve(project, source.topics, "earliest")
        read = table.offsets(owner, {topic: list(numbers) for topic, numbers in newest.items()})
        found[source.name] = {
            topic: {
                number: starts.get(topic, {}).get(number, _inside(read, oldest, topic, number, end))
                for number, end in numbers.items()
            }
            for topic, numbers in newest.items()
        }
    return found


def _inside(read: Position, oldest: Position, topic: str, number: str, end: int) -> int:
    """Where the pipeline has come, if that is in the log; else the log's end."""
    at = read.get(topic, {}).get(number, -1)
    return at if oldest.get(topic, {}).get(number, 0) <= at <= end else end


# ---- after the query


def _check_done(pipeline: Pipeline, checkpoint: Checkpoint, ranges: Ranges) -> None:
    """Raise if the query has not read exactly the range, or cannot have made the same rows as a run."""
    last = checkpoint.last_finished()
    ends = [] if last is None else checkpoint.ends(last)
    if checkpoint.keeps_state():
        raise ReplayRefused(
            f"{pipeline.name} keeps state (windows, joins, deduplication), which a range begins without: its "
            "table is as it was",
            advice="Replay it from earliest, without --to",
        )
    if reads_a_topic_twice(checkpoint):
        raise _reads_twice(pipeline)
    reached = merged(ends, min)
    at = {(topic, int(number)): end for topic, numbers in reached.items() for number, end in numbers.items()}
    short = [
        f"{topic}-{partition} at offset {at.get((topic, partition), each.start)} instead of {each.end}"
        for topic, partition, each in each_range(ranges)
        if at.get((topic, partition), -1) < each.end
    ]
    if short:
        raise ReplayFailed(
            f"{pipeline.name} was not replayed, and its table is as it was: its query ended with "
            f"{named(short)}",
            place=pipeline.place,
        )
