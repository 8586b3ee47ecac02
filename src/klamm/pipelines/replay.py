"""Replay: makes a pipeline read records again. `plan` says what a replay would do, `carry_out` prepares it.

The pipeline gets a new attempt with a new checkpoint, which begins at the given point; the next run starts
there. What happens to the rows that were written before depends on the sink:

    parquet    the batches from that point on are removed from the table and written again: no duplicates
    topic      the rows are written once more
    jdbc, iceberg, delta    the rows are added once more; delete the old ones first if you want them once

Batches are removed whole, so the replay of a table begins where its first removed batch began. Batches whose
records are no longer in the topics stay as they are, since their rows cannot be made again. A pipeline with
state (windows, joins of streams, dropDuplicates) begins without it: only a replay from the earliest record
gives the result of a first run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from klamm.pipelines.attempts import finish_retiring, table_place
from klamm.pipelines.batch_log import BatchEntry, BatchLog
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import Definitions, ParquetSink, Pipeline, TopicSink
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.graph import sources_of
from klamm.pipelines.hadoop import local_path
from klamm.pipelines.positions import EARLIEST_OFFSET, Position, is_gone, merged, reaches
from klamm.pipelines.project import Project
from klamm.pipelines.runner import make_session
from klamm.pipelines.sinks.kinds import sink_text
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.sinks.tables import open_table, table_location
from klamm.pipelines.starts import Point, parse_point, resolve
from klamm.pipelines.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReplayRefused(PipelineError):
    """There is nothing to replay, or the replay would write wrong rows."""


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay will do. A user should confirm the `warnings` before it is carried out."""

    pipeline: str
    sink: str
    attempt: int
    """The number of the new attempt."""
    start: dict[str, Position]
    """The position at which each source begins."""
    retired: tuple[str, ...]
    """Folders that are removed from the table."""
    cut: tuple[int, int] | None
    """The first batch that the batch log forgets: its attempt and number."""
    newest: str
    """The newest folder of the table, or an empty string if there is none."""
    retired_rows: int
    warnings: tuple[str, ...]


def plan(project: Project, pipeline: str, from_: Point, *, spark: SparkSession | None = None) -> ReplayPlan:
    """What a replay from this point would do. Changes nothing.

    Tables and checkpoints that are not on this machine are read through Spark: with the given session, or a
    new one.
    """
    definitions = load_definitions(project)
    wanted = _pipeline(definitions, pipeline)
    state = State(project)
    present = state.attempt(pipeline)
    if present is None:
        raise ReplayRefused(
            f"{pipeline} has not run yet: there is nothing to replay",
            advice="Its first run begins at the start= of its sources",
        )
    if present.pipeline_id and present.table != table_place(project, wanted):
        raise ReplayRefused(
            f"{pipeline} writes to another table than in its last run; its batches may be foreign",
            advice="Run the pipeline first",
        )
    point = parse_point(from_) if isinstance(from_, str) else from_
    starts = {
        source.name: resolve(project, source.topics, _for_topics(point, source.topics))
        for source in sources_of(pipeline, definitions.nodes)
    }
    rebuilt = _Rebuilt({})
    newest = ""
    warnings = []
    with _session_if_needed(project, wanted, spark) as session:
        checkpoint = Checkpoint(session, state.checkpoint(pipeline, present))
        if point != "earliest" and checkpoint.keeps_state():
            warnings.append(
                f"{pipeline} keeps state, and a replay begins without it: windows and joins that reach back "
                "before its start will be incomplete. A replay from earliest is exact"
            )
        if isinstance(wanted.to, ParquetSink):
            folders = open_table(session, table_location(project.tables, wanted.to.table)).folders()
            entries = BatchLog(state.batches_file(pipeline)).entries
            newest = _newest(folders)
            rebuilt = _rebuilt(project, entries, folders, _asked(point, starts), starts)
            if not rebuilt.is_whole and _read_at_two_speeds(checkpoint, entries):
                raise ReplayRefused(
                    f"{pipeline} reads a topic through several sources, which may be at different offsets: "
                    "only a replay of everything is exact",
                    advice="Replay it from earliest",
                )
            starts = {name: _begun(position, rebuilt) for name, position in starts.items()}
            if rebuilt.staying_rows:
                warnings.append(
                    f"{rebuilt.staying_rows:,} rows from there on stay as they are: records of their batches "
                    "are no longer in the topics"
                )
    if not isinstance(wanted.to, ParquetSink):
        _check_all_named(point, starts)
        what = "once more" if isinstance(wanted.to, TopicSink) else "in addition to those that it has"
        warnings.append(f"{sink_text(wanted.to)} gets the rows of the replay {what}")
    return ReplayPlan(
        pipeline=pipeline,
        sink=sink_text(wanted.to),
        attempt=present.number + 1,
        start=starts,
        retired=tuple(folder.name for folder in rebuilt.retired),
        cut=rebuilt.first,
        newest=newest,
        retired_rows=rebuilt.rows,
        warnings=tuple(warnings),
    )


def carry_out(project: Project, planned: ReplayPlan, *, spark: SparkSession | None = None) -> None:
    """Prepare the next run to begin where the plan says. Raises ProjectBusy while the project runs.

    The new attempt is written to disk first, with the folders to remove, and then the folders are removed. If
    the process is killed in between, the next run finishes the work.
    """
    state = State(project)
    wanted = _pipeline(load_definitions(project), planned.pipeline)
    with state.lock("preparing a replay"), _session_if_needed(project, wanted, spark) as session:
        present = state.attempt(planned.pipeline)
        if present is not None and present.cut is not None:
            finish_retiring(project, state, wanted, present, session)
        if present is None or present.number + 1 != planned.attempt or present.cut:
            raise ReplayRefused(
                f"{planned.pipeline} was replayed after this replay was planned",
                advice="Plan the replay again",
            )
        if isinstance(wanted.to, ParquetSink):
            folders = open_table(session, table_location(project.tables, wanted.to.table)).folders()
            if planned.newest != _newest(folders):
                raise ReplayRefused(
                    f"{planned.pipeline} has run since the replay was planned", advice="Plan the replay again"
                )
        begun = present.next(planned.start, planned.retired, planned.cut)
        state.keep_attempt(planned.pipeline, begun)
        if begun.cut is not None:
            finish_retiring(project, state, wanted, begun, session)


def _newest(folders: Sequence[BatchFolder]) -> str:
    return folders[-1].name if folders else ""


def _pipeline(definitions: Definitions, name: str) -> Pipeline:
    found = definitions.pipelines.get(name)
    if found is None:
        raise ReplayRefused(
            f"there is no pipeline called {name!r}", advice=f"There are {', '.join(definitions.pipelines)}"
        )
    return found


@contextmanager
def _session_if_needed(
    project: Project, pipeline: Pipeline, spark: SparkSession | None
) -> Iterator[SparkSession | None]:
    """A session to read files with; None if all files are on this machine and none was given."""
    places = [project.checkpoints]
    if isinstance(pipeline.to, ParquetSink):
        places.append(table_location(project.tables, pipeline.to.table))
    if spark is not None or all(local_path(place) is not None for place in places):
        yield spark
        return
    made = make_session(project)
    try:
        yield made
    finally:
        made.stop()


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


def _first_reached(
    entries: Sequence[BatchEntry], folders: Sequence[BatchFolder], point: Position
) -> BatchEntry | None:
    """The first batch with records at or after the point; if it was merged, the first batch of its folder."""
    found = next((entry for entry in entries if reaches(entry.end, point)), None)
    if found is None:
        return None
    inside = next((folder for folder in folders if folder.holds(found.attempt, found.first)), None)
    if inside is None:
        return found
    return next(entry for entry in entries if inside.holds(entry.attempt, entry.first))


class _Rebuilt(NamedTuple):
    """What a replay does to a table: where it begins, which folders it removes, how many rows stay although
    they were asked for. `is_whole` if every batch of the table is removed."""

    begins: Position
    first: tuple[int, int] | None = None
    is_whole: bool = True
    retired: tuple[BatchFolder, ...] = ()
    rows: int = 0
    staying_rows: int = 0


def _rebuilt(
    project: Project,
    entries: Sequence[BatchEntry],
    folders: Sequence[BatchFolder],
    point: Position,
    starts: Mapping[str, Position],
) -> _Rebuilt:
    reached = _first_reached(entries, folders, point)
    if reached is None:
        raise ReplayRefused(
            "no batch of the table reaches that point: there is nothing to replay",
            advice="Give an earlier point; the next run reads newer records anyway",
        )
    later = entries[entries.index(reached) :]
    topics = merged(starts.values(), min)
    oldest, newest = resolve(project, topics, "earliest"), resolve(project, topics, "latest")
    end = merged((entry.end for entry in later), max)
    begins_folder = {folder[:2] for folder in folders}
    for index, entry in enumerate(later):
        inside = any(folder.holds(entry.attempt, entry.first) for folder in folders)
        is_first = not inside or (entry.attempt, entry.first) in begins_folder
        if is_first and not is_gone(entry.start, end, oldest, newest):
            return _Rebuilt(
                begins=entry.start,
                first=(entry.attempt, entry.first),
                is_whole=entry is entries[0],
                retired=tuple(folder for folder in folders if folder[:2] >= (entry.attempt, entry.first)),
                rows=sum(each.rows for each in later[index:]),
                staying_rows=sum(each.rows for each in later[:index]),
            )
    raise ReplayRefused(
        f"records of all batches from there on are no longer in {', '.join(topics)}: nothing can be replayed",
        advice="Keep the table as it is, and let the pipeline write to a new table",
    )


def _begun(position: Position, rebuilt: _Rebuilt) -> Position:
    """Where a source begins: at the start of the first removed batch, new partitions at their oldest record.
    If all batches are removed, it begins at an earlier point if one was asked for."""
    begun: Position = {}
    for topic, partitions in position.items():
        for number, asked in partitions.items():
            begins = rebuilt.begins.get(topic, {}).get(number, EARLIEST_OFFSET)
            is_before = rebuilt.is_whole and 0 <= asked < begins
            begun.setdefault(topic, {})[number] = asked if is_before else begins
    return begun


def _read_at_two_speeds(checkpoint: Checkpoint, entries: Sequence[BatchEntry]) -> bool:
    """True if several sources of the query read the same topic. The batch log has one position per topic."""
    topics = [topic for end in checkpoint.ends(entries[-1].last) for topic in end]
    return len(topics) != len(set(topics))
