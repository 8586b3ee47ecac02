"""Redrives the dead-letter records of a pipeline through its retry topics, each once.

For pipelines with state, and for those that do not append to a table: the running query, or the next one,
reads the records and has them go through its functions and its state. Only this pipeline reads them.

What was redriven stands in the retry topic alone (`log.py`), beside the records themselves. A redrive that is
killed leaves there what it has sent, the next one shuts it out and sends the rest (`session.py`). Nothing is
lost or sent twice, at whatever moment it is killed. The query's checkpoint does the same for what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from klamm.client.errors import BrokerError, ClientError
from klamm.client.results import TopicPartition
from klamm.pipelines.addressing import EPOCH, FOR, OFFSET, RETRIED_FROM, SOURCE, TOPIC
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.dead_letters import LETTER, PARTITION, TIMESTAMP
from klamm.pipelines.definitions import Definitions, Pipeline, Source
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.graph import sources_of
from klamm.pipelines.locations import local_path
from klamm.pipelines.originals import (
    CHUNK_RECORDS,
    REDRIVEN,
    Clients,
    DeadLetter,
    Found,
    Originals,
    RedriveFailed,
    Redriven,
    of_the_original,
    open_clients,
    times_redriven,
)
from klamm.pipelines.project import Project
from klamm.pipelines.redrive import Marks
from klamm.pipelines.rereading import is_read_anew, readers_of
from klamm.pipelines.retry.log import ALL_RULES, Headers, Place, RetryLog, letter_text
from klamm.pipelines.retry.sent import session_of
from klamm.pipelines.retry.session import Retried
from klamm.pipelines.retry.topics import RETRY_PARTITION, retry_topic
from klamm.pipelines.retry.watermarks import count_late
from klamm.pipelines.retry.writer import OrderedWriter
from klamm.pipelines.state import Attempt, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_LEFT = 1000
"""How many records that the broker refuses a retry topic keeps in mind."""

MOST_COMPARED = 10_000
"""How many records are compared with the watermark, before they are sent."""


def why_not_retried(project: Project, pipeline: Pipeline, definitions: Definitions) -> str:
    """Why dead-letter records of a pipeline cannot go through a retry topic now; empty if they can."""
    if not sources_of(pipeline.name, definitions.nodes):
        return "it reads no topic"
    return "" if State(project).attempt(pipeline.name) is not None else "it has not run yet in this folder"


def redrive_through_topic(
    project: Project,
    pipeline: str,
    *,
    rule: str | None = None,
    dry_run: bool = False,
    session: Callable[[], SparkSession] | None = None,
) -> Redriven:
    """Redrive the dead-letter records of a pipeline that exist now, of all rules or one. The project may be
    running meanwhile.

    With `dry_run` they are only counted. With a `session`, too, those that are older than the pipeline's
    watermark are counted, as windows and joins may drop them.
    """
    definitions = load_definitions(project)
    node = definitions.pipelines[pipeline]
    if reason := why_not_retried(project, node, definitions):
        raise RedriveFailed(
            f"dead-letter records of {pipeline} cannot be redriven: {reason}",
            advice="Run the pipeline, then redrive them",
        )
    state = State(project)
    attempt = state.attempt(pipeline)
    assert attempt is not None
    result = Redriven()
    found: dict[str, list[Found]] = {}
    try:
        with ExitStack() as stack:
            if not dry_run:  # a replay has the lock, too
                stack.enter_context(state.lock("redriving dead-letter records", "redrive.lock"))
            clients = stack.enter_context(open_clients(project))
            for source in sources_of(pipeline, definitions.nodes):
                work = _RetryWork(project, clients, definitions, node, attempt, source, rule)
                if dry_run:
                    found[source.name] = work.look()
                else:
                    work.run()
                _add(result, work.result)
    except ClientError as error:
        raise RedriveFailed(
            f"not all dead-letter records in {project.dead_letters} were redriven: {error}",
            advice="" if isinstance(error, BrokerError) else "Is the broker running?",
        ) from error
    if session is not None and result.total:
        location = state.checkpoint(pipeline, attempt)
        checkpoint = Checkpoint(None if local_path(location) is not None else session(), location)
        watermark_ms = checkpoint.watermark_ms()
        if watermark_ms is not None:
            result.late = count_late(project, node, definitions, found, watermark_ms, session())
            result.watermark_ms = watermark_ms
    return result


def _add(result: Redriven, part: Redriven) -> None:
    result.sent += part.sent
    result.waiting += part.waiting
    result.kept += part.kept
    result.repeated += part.repeated
    result.of_rows += part.of_rows
    result.others |= part.others


class _RetryWork(Originals):
    """One redrive of the dead-letter records of one pipeline whose originals one of its sources reads."""

    def __init__(
        self,
        project: Project,
        clients: Clients,
        definitions: Definitions,
        pipeline: Pipeline,
        attempt: Attempt,
        source: Source,
        rule: str | None,
    ) -> None:
        super().__init__(project, clients, by_epoch=False)
        self._pipeline = pipeline.name
        self._attempt = attempt
        self._source = source
        self._sources = sources_of(pipeline.name, definitions.nodes)
        self._rule = rule
        self._rule_name = ALL_RULES if rule is None else rule
        self._group = project.group_of(pipeline.name)
        self._topics = clients.admin.describe_topics()
        self._topic = retry_topic(project, pipeline.name, source.name)
        self._session = session_of(project, clients, self._topic, self._topics)
        self._finished = clients.admin.list_group_offsets(self._group)
        self._to_topics = clients.admin.list_group_offsets(project.group_of("redrive"))
        chosen = self.dead_letter_partitions()
        self._beginnings = clients.consumer.beginning_offsets(chosen)
        self._ends = dict(clients.consumer.end_offsets(chosen))

    def look(self) -> list[Found]:
        """Count what there is to send. Returns the first of it."""
        log = self._session.read() if self._topic in self._topics else RetryLog()
        some: list[Found] = []
        for found in self._to_send(log):
            self._count(found)
            if len(some) < MOST_COMPARED:
                some.append(found)
        return some

    def run(self) -> None:
        """Send what there is to send."""
        is_there = self._topic in self._topics
        log = self._session.read() if is_there else RetryLog()
        if next(self._to_send(log), None) is None:
            return
        if not is_there:
            names = [self._project.dead_letters, *(n for n in self._source.topics if n in self._topics)]
            self._session.create(names)
        self._start_anew()
        with OrderedWriter(self._project, self._topic, int(RETRY_PARTITION)) as writer:
            log = self._session.open(writer)
            left = set(log.marks.left) - log.sent
            some: list[Found] = []
            for found in self._to_send(log):
                some.append(found)
                if len(some) >= CHUNK_RECORDS:
                    self._send(writer, some, left)
                    some = []
            self._send(writer, some, left)
            ends = {partition.partition: end for partition, end in self._ends.items()}
            self._session.close(writer, log.marks.advanced(self._rule_name, ends, left))

    def _start_anew(self) -> None:
        """Forget what was counted."""
        self.result = Redriven()
        self._met.clear()
        self._ends = dict(self._clients.consumer.end_offsets(self.dead_letter_partitions()))

    def _send(self, writer: OrderedWriter, some: list[Found], left: set[Place]) -> None:
        refused = self._session.send(writer, [self._retried(found) for found in some])
        for found in some:
            place = _place(found.dead_letter)
            left.discard(place)
            if place in refused:
                left.add(place)
                self.result.kept[refused[place]] += 1
            else:
                self._count(found)
        if len(left) > MOST_LEFT:
            raise RedriveFailed(
                f"{self._topic} refuses more than {MOST_LEFT:,} records: {next(iter(refused.values()), '')}",
                advice="Set its max.message.bytes higher, and redrive again",
            )

    def _count(self, found: Found) -> None:
        self.result.sent[self._topic] += 1
        self.result.of_rows += found.dead_letter.source not in {source.name for source in self._sources}

    # ---- what to send

    def _to_send(self, log: RetryLog) -> Iterator[Found]:
        for partition in self._ends:
            beginning = self._beginnings[partition]
            to_topics = Marks.of(self._to_topics.get(partition), beginning)
            start = max(beginning, log.marks.start(self._rule_name, partition.partition))
            if start < self._ends[partition]:
                yield from self._of_partition(partition, start, log, to_topics)

    def _of_partition(
        self, partition: TopicPartition, start: int, log: RetryLog, to_topics: Marks
    ) -> Iterator[Found]:
        is_open = False
        for _, chunk in self.chunks(partition, start, self._ends[partition]):
            for dead_letter in chunk:
                offset = dead_letter.record.offset
                if not self._is_wanted(dead_letter):
                    continue
                if log.has(dead_letter.rule, _place(dead_letter)) or to_topics.is_done(
                    dead_letter.name, offset
                ):
                    continue
                if not is_open and self._is_of_an_open_batch(dead_letter):
                    is_open = True
                    self._ends[partition] = offset
                if is_open:
                    reason = (
                        "the batch that wrote them, or one before them, is not finished: run the pipeline"
                    )
                    self.result.waiting[reason] += 1
                elif self._is_void(dead_letter):
                    self.result.repeated += 1
                elif (original := self.find(dead_letter)) is not None:
                    yield Found(dead_letter, original)

    def _is_wanted(self, dead_letter: DeadLetter) -> bool:
        if dead_letter.pipeline != self._pipeline or self._rule not in (None, dead_letter.rule):
            self.result.others.add(f"{dead_letter.pipeline}, {dead_letter.rule}")
            return False
        readers = readers_of(self._project, self._pipeline, self._sources, dead_letter)
        # What no source reads (any more) is counted once, and why it is kept.
        return self._source in (readers or self._sources[:1])

    def _is_of_an_open_batch(self, dead_letter: DeadLetter) -> bool:
        """True if the batch that wrote the dead-letter record may run again, and write another one."""
        topic, partition, offset = dead_letter.read_at
        if partition is None or offset is None:
            return False
        finished = self._finished.get(TopicPartition(topic, partition))
        return finished is not None and offset >= finished.offset

    def _is_void(self, dead_letter: DeadLetter) -> bool:
        readers = readers_of(self._project, self._pipeline, self._sources, dead_letter)
        return self._attempt.is_given_up(dead_letter.epoch) or is_read_anew(
            dead_letter, readers, self._attempt
        )

    def _why_not(self, dead_letter: DeadLetter) -> str:
        if dead_letter.partition is None or dead_letter.offset is None:
            return super()._why_not(dead_letter) or "their headers do not name the original record"
        if not readers_of(self._project, self._pipeline, self._sources, dead_letter):
            return f"{self._pipeline} does not read {dead_letter.retry_topic or dead_letter.topic} any more"
        return super()._why_not(dead_letter)

    # ---- one record

    def _retried(self, found: Found) -> Retried:
        dead_letter, original = found
        headers: Headers = of_the_original(original)
        headers.append((REDRIVEN, str(times_redriven(original) + 1).encode()))
        headers.append((FOR, self._group.encode()))
        address = (TOPIC, PARTITION, OFFSET, TIMESTAMP, EPOCH, SOURCE)
        headers += [(name, dead_letter.headers[name]) for name in address if name in dead_letter.headers]
        if dead_letter.place:
            headers.append((RETRIED_FROM, dead_letter.place.encode()))
        headers.append((LETTER, letter_text(_place(dead_letter))))
        return Retried(_place(dead_letter), original.key, original.value, headers)


def _place(dead_letter: DeadLetter) -> Place:
    return dead_letter.record.partition, dead_letter.record.offset
