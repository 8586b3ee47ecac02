"""Reads records again that a pipeline has read: `plan` says what that means, `carry_out` prepares it.

The pipeline gets a new attempt, with a checkpoint of its own, that begins where it shall be read again;
the next run goes on from there. What becomes of what was written before depends on the sink:

    parquet    the batches from that point on are taken out of the table and made anew: each row is there once
    topic      the rows are written once more
    jdbc, iceberg, delta    the rows are added once more: whoever wants them once deletes the old ones first

Batches are taken out whole, so a table's replay begins where the first such batch began. Those whose records
are no longer in the topics stay as they are: nobody could make their rows anew. A pipeline with state
(windows, joins of streams, duplicates dropped) begins with none: only a replay from the earliest record is as
if it had never run before.
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
    """There is nothing to replay, or it would make rows that are wrong."""


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay will do. `warnings` want a yes from a human before it is carried out."""

    pipeline: str
    sink: str
    attempt: int
    """The number of the attempt that begins."""
    start: dict[str, Position]
    """Where it begins, for each source."""
    retired: tuple[str, ...]
    """Folders that are taken out of the table."""
    cut: tuple[int, int] | None
    """The first batch of its log that goes, by attempt and number."""
    newest: str
    """The newest folder of the table by now; none: nothing."""
    retired_rows: int
    warnings: tuple[str, ...]


def plan(project: Project, pipeline: str, from_: Point, *, spark: SparkSession | None = None) -> ReplayPlan:
    """What a replay from this point would do. Changes nothing.

    What is not on this machine is looked at through Spark: give a session, or one is made for it.
    """
    definitions = load_definitions(project)
    wanted = _pipeline(definitions, pipeline)
    state = State(project)
    present = state.attempt(pipeline)
    if present is None:
        raise ReplayRefused(
            f"{pipeline} has not run yet: there is nothing to replay",
            advice="Its first run begins where its source says (start=)",
        )
    if present.pipeline_id and present.table != table_place(project, wanted):
        raise ReplayRefused(
            f"{pipeline} writes to another place than it did: what is there may be another's",
            advice="Run it first",
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
                f"{pipeline} keeps state, which a replay begins without: windows and joins that reach back "
                "behind its start come out incomplete. A replay from earliest is exact"
            )
        if isinstance(wanted.to, ParquetSink):
            folders = open_table(session, table_location(project.tables, wanted.to.table)).folders()
            entries = BatchLog(state.batches_file(pipeline)).entries
            newest = _newest(folders)
            rebuilt = _rebuilt(project, entries, folders, _asked(point, starts), starts)
            if not rebuilt.is_whole and _read_at_two_speeds(checkpoint, entries):
                raise ReplayRefused(
                    f"{pipeline} reads a topic more than once, and not always equally far: only a replay of "
                    "all of it is exact",
                    advice="Replay it from earliest",
                )
            starts = {name: _begun(position, rebuilt) for name, position in starts.items()}
            if rebuilt.staying_rows:
                warnings.append(
                    f"{rebuilt.staying_rows:,} rows from there on stay as they are: records of their batches "
                    "are gone from the topics, so that they cannot be made anew"
                )
    if not isinstance(wanted.to, ParquetSink):
        _check_all_named(point, starts)
        what = "once more" if isinstance(wanted.to, TopicSink) else "in addition to those it has"
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
    """Prepare the next run to begin where the plan says. Refused while the project runs.

    First the attempt is written down, with what is to be retired, then that is done: whatever happens in
    between, the next run finishes it.
    """
    state = State(project)
    wanted = _pipeline(load_definitions(project), planned.pipeline)
    with state.lock("preparing a replay"), _session_if_needed(project, wanted, spark) as session:
        present = state.attempt(planned.pipeline)
        if present is not None and present.cut is not None:
            finish_retiring(project, state, wanted, present, session)
        if present is None or present.number + 1 != planned.attempt or present.cut:
            raise ReplayRefused(
                f"{planned.pipeline} has been replayed since this was planned", advice="Plan it again"
            )
        if isinstance(wanted.to, ParquetSink):
            folders = open_table(session, table_location(project.tables, wanted.to.table)).folders()
            if planned.newest != _newest(folders):
                raise ReplayRefused(
                    f"{planned.pipeline} has gone on since the replay was planned", advice="Plan it again"
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
    """The session to look at files with; none where all of them are on this machine."""
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
    """The point in every partition that was asked for; of others nothing needs to be made anew."""
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
                    f"the offsets do not say where partition {', '.join(missing)} of {topic} begins",
                    advice="Name every partition, or say a time",
                )


def _first_reached(
    entries: Sequence[BatchEntry], folders: Sequence[BatchFolder], point: Position
) -> BatchEntry | None:
    """The first batch with records at or after the point, or of the folder that it was merged into."""
    found = next((entry for entry in entries if reaches(entry.end, point)), None)
    if found is None:
        return None
    inside = next((folder for folder in folders if folder.holds(found.attempt, found.first)), None)
    if inside is None:
        return found
    return next(entry for entry in entries if inside.holds(entry.attempt, entry.first))


class _Rebuilt(NamedTuple):
    """What a replay means for a table: where it begins, what goes, and how much cannot be made anew.
    `is_whole`: nothing stays."""

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
            "no batch of the table reaches that point: there is nothing to make anew",
            advice="Say an earlier point; what has not been read yet is read by the next run anyway",
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
        f"records of all batches from there on are gone from {', '.join(topics)}: no row could be made anew",
        advice="Keep the table as it is, and let the pipeline write to a new one",
    )


def _begun(position: Position, rebuilt: _Rebuilt) -> Position:
    """Where a source begins again: with the batch that begins there; newer partitions at their start. Before
    the first of all batches it begins where it was asked to."""
    begun: Position = {}
    for topic, partitions in position.items():
        for number, asked in partitions.items():
            begins = rebuilt.begins.get(topic, {}).get(number, EARLIEST_OFFSET)
            is_before = rebuilt.is_whole and 0 <= asked < begins
            begun.setdefault(topic, {})[number] = asked if is_before else begins
    return begun


def _read_at_two_speeds(checkpoint: Checkpoint, entries: Sequence[BatchEntry]) -> bool:
    """Whether a topic is read by several sources of the query. A batch of the log has one position of it."""
    topics = [topic for end in checkpoint.ends(entries[-1].last) for topic in end]
    return len(topics) != len(set(topics))
