"""Redrives the dead-letter records of a pipeline into its table, each once: nothing is sent to a topic.

The original records go through the pipeline's present functions as one batch, and the rows are committed to
the table together with the offsets of the dead-letter records (`redriven_tables.py`). A redrive that is
killed has committed all of that or nothing. Records that break an expectation again get new dead-letter
records before the commit, and the next redrive finds those; of several dead-letter records of one original
it takes one.

Records that the pipeline has read again since, in a replay or because a batch ran again, are left out: their
rows are in the table, or they have newer dead-letter records. Pipelines with state, and sinks other than
append tables, get theirs through a retry topic: see `retry/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from klamm.client.errors import BrokerError, ClientError
from klamm.pipelines import frames
from klamm.pipelines.attempts import finish_replay
from klamm.pipelines.callbacks import ensure_callbacks
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import Definitions, Pipeline, Source, TableSink
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.graph import sources_of
from klamm.pipelines.original_rows import original_rows
from klamm.pipelines.originals import (
    Clients,
    DeadLetter,
    Found,
    Originals,
    RedriveFailed,
    Redriven,
    open_clients,
)
from klamm.pipelines.project import Project
from klamm.pipelines.redrive import Marks
from klamm.pipelines.redriven_tables import ALL_RULES, RedriveCommit, Replayed, redriven_below
from klamm.pipelines.rereading import is_read_anew, readers_of
from klamm.pipelines.runner import make_session
from klamm.pipelines.sinks.table import TableWriter, Writing
from klamm.pipelines.sinks.writing import open_table
from klamm.pipelines.spark_sessions import session_meanwhile
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upserting import Choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


NO_BATCH = "its table has no batch yet"


def why_not(project: Project, pipeline: Pipeline) -> str:
    """Why the dead-letter records of a pipeline cannot be redriven into its table; empty if they can."""
    if not isinstance(pipeline.to, TableSink):
        return "it does not write to a table"
    if pipeline.mode != "append":
        return f"rows of its table change (mode={pipeline.mode!r})"
    reached = open_table(project, pipeline.to).reached(project.group_of(pipeline.name))
    if reached is None:
        return NO_BATCH
    return "it keeps state (windows, joins, deduplication)" if reached.keeps_state else ""


def redrive_to_table(
    project: Project,
    pipeline: str,
    *,
    rule: str | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
) -> Redriven:
    """Redrive the dead-letter records of a pipeline that exist now, of all rules or one. With `dry_run` they
    are only counted. The project may be running meanwhile."""
    definitions = load_definitions(project)
    node = definitions.pipelines[pipeline]
    if reason := why_not(project, node):
        raise RedriveFailed(
            f"dead-letter records of {pipeline} cannot be redriven into a table: {reason}",
            advice="Redrive them through a retry topic",
        )
    state = State(project)
    try:
        with ExitStack() as stack:
            if not dry_run:  # a replay has the lock, too
                stack.enter_context(state.lock("redriving dead-letter records", "redrive.lock"))
            attempt = _present(project, state, node, is_looking=dry_run)
            clients = stack.enter_context(open_clients(project))
            work = _TableWork(project, clients, definitions, node, attempt, rule)
            commit, found = work.read()
            if found and not dry_run:
                session = stack.enter_context(session_meanwhile(project, make_session, spark))
                work.write(commit, found, session)
            return work.result
    except ClientError as error:
        raise RedriveFailed(
            f"the dead-letter records in {project.dead_letters} were not redriven: {error}",
            advice="" if isinstance(error, BrokerError) else "Is the broker running?",
        ) from error


def _present(project: Project, state: State, pipeline: Pipeline, *, is_looking: bool) -> Attempt:
    """The pipeline's attempt. Its epochs decide which dead-letter records count, so it must be that of the
    table."""
    assert isinstance(pipeline.to, TableSink)
    reached = open_table(project, pipeline.to).reached(project.group_of(pipeline.name))
    present = state.attempt(pipeline.name)
    found = finish_replay(state, pipeline, present, reached, is_looking=is_looking)
    if found is None or reached is None or found.number < reached.attempt:
        raise RedriveFailed(
            f"the project's state does not know the last attempt of {pipeline.name}",
            advice="Run the pipeline first: it finds its state again",
        )
    return found


class _TableWork(Originals):
    """One redrive of one pipeline."""

    def __init__(
        self,
        project: Project,
        clients: Clients,
        definitions: Definitions,
        pipeline: Pipeline,
        attempt: Attempt,
        rule: str | None,
    ) -> None:
        super().__init__(project, clients, by_epoch=False)
        assert isinstance(pipeline.to, TableSink)
        self._definitions = definitions
        self._pipeline = pipeline
        self._sink: TableSink = pipeline.to
        self._attempt = attempt
        self._rule = rule
        self._owner = project.group_of(pipeline.name)
        self._table: Table = open_table(project, self._sink)
        self._sources = sources_of(pipeline.name, definitions.nodes)
        self._replayed = Replayed(self._table, self._owner)
        self._known: dict[tuple[str, int], int] = {}
        topics = {topic for source in self._sources for topic in source.topics}
        partitions = {topic: [str(n) for n in range(self._partitions.get(topic, 0))] for topic in topics}
        self._committed = self._table.offsets(self._owner, partitions)

    def read(self) -> tuple[RedriveCommit, list[Found]]:
        """The dead-letter records to redrive, and what to commit with their rows."""
        chosen = self.dead_letter_partitions()
        beginnings = self._clients.consumer.beginning_offsets(chosen)
        ends = dict(self._clients.consumer.end_offsets(chosen))
        # What was sent back to topics counts as redriven, too.
        sent = self._clients.admin.list_group_offsets(self._project.group_of("redrive"))
        found: list[Found] = []
        for partition in chosen:
            marks = Marks.of(sent.get(partition), beginnings[partition])
            start = max(beginnings[partition], self._below(ALL_RULES, partition.partition))
            if start >= ends[partition]:
                continue
            for _, chunk in self.chunks(partition, start, ends[partition]):
                for dead_letter in chunk:
                    if self._is_of_an_open_batch(dead_letter):
                        ends[partition] = min(ends[partition], dead_letter.record.offset)
                    if dead_letter.record.offset >= ends[partition]:
                        break
                    if self._is_wanted(dead_letter) and not marks.is_done(
                        dead_letter.name, dead_letter.record.offset
                    ):
                        original = self.find(dead_letter)
                        if original is not None:
                            found.append(Found(dead_letter, original))
        commit = RedriveCommit(
            self._owner,
            self._project.dead_letters,
            ALL_RULES if self._rule is None else self._rule,
            {partition.partition: ends[partition] for partition in chosen},
            len(found),
        )
        self.result.sent[f"table {self._sink.table}"] = len(found)
        names = {source.name for source in self._sources}
        self.result.of_rows = sum(each.dead_letter.source not in names for each in found)
        return commit, found

    def write(self, commit: RedriveCommit, found: Sequence[Found], spark: SparkSession) -> None:
        """Make rows of the records and commit them. Those that are still bad get new dead-letter records."""
        ensure_callbacks(spark)
        frame = frames.build(
            self._pipeline,
            self._definitions,
            self._project,
            spark,
            streaming=False,
            attempt=self._attempt,
            records={source.name: self._records(source, found, spark) for source in self._sources},
        )
        writing = Writing(
            self._owner,
            self._attempt.number,
            self._attempt.epoch,
            {},
            self._pipeline.mode,
            Choice(self._pipeline.keys, self._pipeline.order_by, self._pipeline.keep),
            self._pipeline.place,
        )
        checkpoint = Checkpoint(spark, State(self._project).checkpoint(self._pipeline.name, self._attempt))
        writer = TableWriter(self._sink, self._table, writing, checkpoint, lambda batch, rows: None)
        self.result.rows = writer.write(frame, commit)

    def _is_wanted(self, dead_letter: DeadLetter) -> bool:
        if dead_letter.pipeline != self._pipeline.name or self._rule not in (None, dead_letter.rule):
            self.result.others.add(f"{dead_letter.pipeline}, {dead_letter.rule}")
            return False
        record = dead_letter.record
        if record.offset < self._below(dead_letter.rule, record.partition):
            return False
        is_void = self._attempt.is_given_up(dead_letter.epoch) or self._replayed.settles(dead_letter)
        if is_void or is_read_anew(dead_letter, self._readers(dead_letter), self._attempt):
            self.result.repeated += 1
            return False
        return True

    def _is_of_an_open_batch(self, dead_letter: DeadLetter) -> bool:
        """True if the batch that wrote the dead-letter record is not in the table: it may run again, and
        write another one. A redrive stops there."""
        if dead_letter.pipeline != self._pipeline.name or dead_letter.offset is None:
            return False
        committed = self._committed.get(dead_letter.topic, {}).get(str(dead_letter.partition))
        return committed is not None and dead_letter.offset >= committed

    def _below(self, rule: str, partition: int) -> int:
        """The offset below which the dead-letter records of a rule are redriven."""
        if (rule, partition) not in self._known:
            topic = self._project.dead_letters
            self._known[rule, partition] = redriven_below(self._table, self._owner, rule, topic, partition)
        return self._known[rule, partition]

    def _readers(self, dead_letter: DeadLetter) -> list[Source]:
        return readers_of(self._project, self._pipeline.name, self._sources, dead_letter)

    def _records(self, source: Source, found: Sequence[Found], spark: SparkSession) -> DataFrame:
        """The original records that a source reads, as the data source would read them."""
        return original_rows((each for each in found if source in self._readers(each.dead_letter)), spark)
