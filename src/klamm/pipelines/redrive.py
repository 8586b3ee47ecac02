"""Redrive: sends dead-letter records back to the topics they came from, each once.

The headers of a redriven record name the pipeline that it is for and the original record. Other pipelines,
and pipelines that read the original again, skip it (addressing.py). If several pipelines have written
dead-letter records of one original, each goes back on its own.

Progress is committed in the group `<project>.redrive`: the offset below which all dead-letter records were
handled, and in the commit's metadata higher offsets for single pipelines and rules. So a redrive of one rule
leaves the others for later, and a later redrive of everything does not send the first ones again. Dead-letter
records of a pipeline that the project no longer has are left for later, all of them. Offsets are committed
after a chunk was acknowledged: a process that is killed in between sends one chunk again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from klamm.client.errors import BrokerError, ClientError, RecordRefused, RecordTooLarge
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Delivery, Producer
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.pipelines import dead_letters
from klamm.pipelines.addressing import EPOCH, FOR, OFFSET, SOURCE, TOPIC
from klamm.pipelines.definitions import Definitions
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project
from klamm.pipelines.redriven_tables import RedrivenTables
from klamm.pipelines.state import State

REDRIVEN = "klamm.redriven"
"""The header with the number of times that a record was sent back."""

CHUNK_RECORDS = 500
"""Records between two commits. A killed redrive may send so many twice; fewer would mean more commits."""

POLL_S = 5.0
"""How long to wait for the next records before giving up. The next redrive continues there."""

MOST_METADATA_BYTES = 4000
"""Brokers accept 4,096 bytes of metadata with a committed offset by default."""


class RedriveFailed(PipelineError):
    """Dead-letter records cannot be read or sent."""


@dataclass
class Redriven:
    """How many dead-letter records a redrive sent back, by topic; how many are left for later (`waiting`) or
    cannot be sent (`kept`), by reason.

    `repeated` counts duplicates: dead-letter records whose original this redrive has already sent to the same
    pipeline. Spark makes them when it runs a task again; with `for_all`, several pipelines do. `of_rows`
    counts sent records that broke an expectation of a transform or pipeline: other rows of the same original
    will be written again. `others` names the pipelines and rules that were not asked for.
    """

    sent: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    of_rows: int = 0
    others: set[str] = field(default_factory=set)
    rows: int = 0
    """How many rows were committed to a table."""

    @property
    def total(self) -> int:
        return self.sent.total()

    def to_json(self) -> dict[str, object]:
        return {
            "sent": dict(self.sent),
            "waiting": dict(self.waiting),
            "kept": dict(self.kept),
            "repeated": self.repeated,
            "of_rows": self.of_rows,
            "rows": self.rows,
        }


def redrive(
    project: Project,
    *,
    pipeline: str | None = None,
    rule: str | None = None,
    for_all: bool = False,
    dry_run: bool = False,
) -> Redriven:
    """Send back the dead-letter records that exist now: all, or those of a pipeline, of a rule, or of both.

    With `for_all` every pipeline that reads the topic reads them, like any new record. With `dry_run` nothing
    is sent or committed, only counted.
    """
    wanted = _Wanted(pipeline, rule, for_all, dry_run, load_definitions(project))
    alone = nullcontext() if dry_run else State(project).lock("redriving dead-letter records", "redrive.lock")
    try:
        with alone, open_clients(project) as clients:
            work = _Work(project, clients, wanted)
            work.run()
            return work.result
    except ClientError as error:
        raise RedriveFailed(
            f"not all dead-letter records in {project.dead_letters} were sent: {error}",
            advice="" if isinstance(error, BrokerError) else "Is the broker running?",
        ) from error


# ---- dead-letter records, and which of them to send


class DeadLetter:
    """A dead-letter record with its headers parsed."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.headers = dict(record.headers)
        self.pipeline = self._text(dead_letters.PIPELINE)
        self.rule = self._text(dead_letters.RULE)
        self.name = f"{self.pipeline}/{self.rule}"
        self.source = self._text(SOURCE)
        self.topic = self._text(TOPIC)
        self.partition = _number(self._text(dead_letters.PARTITION))
        self.offset = _number(self._text(OFFSET))
        self.timestamp = _number(self._text(dead_letters.TIMESTAMP))
        self.content = self._text(dead_letters.CONTENT)
        self.epoch = self._text(EPOCH)

    def _text(self, name: str) -> str:
        return _text(self.headers.get(name))


class _Wanted(NamedTuple):
    """Which dead-letter records to send: of this pipeline and this rule; None means any."""

    pipeline: str | None
    rule: str | None
    for_all: bool
    dry_run: bool
    definitions: Definitions

    @property
    def is_everything(self) -> bool:
        return self.pipeline is None and self.rule is None

    def includes(self, dead_letter: DeadLetter) -> bool:
        return self.pipeline in (None, dead_letter.pipeline) and self.rule in (None, dead_letter.rule)


class Clients(NamedTuple):
    """What a redrive works with."""

    consumer: Consumer
    originals: Consumer
    """Reads original records that their dead-letter records do not carry."""
    producer: Producer
    admin: Admin


@contextmanager
def open_clients(project: Project) -> Iterator[Clients]:
    """The clients of a redrive, closed at its end."""
    # Without the group: a consumer in it would commit what was read, but we commit what was sent.
    settings = consumer_settings(project)
    with (
        Consumer(project.bootstrap, config=settings) as consumer,
        Consumer(project.bootstrap, config=settings) as originals,
        Producer(project.bootstrap, config=project.client_settings("producer")) as producer,
        Admin(project.bootstrap, config=project.client_settings("admin")) as admin,
    ):
        yield Clients(consumer, originals, producer, admin)


# ---- progress


@dataclass
class Marks:
    """How far one partition is redriven: everything below the offset `base`, and in `ahead` higher offsets
    for some pipelines and rules, named by a short hash, since a commit has little room.
    """

    base: int
    ahead: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, committed: CommittedOffset | None, beginning: int) -> Marks:
        if committed is None:
            return cls(beginning)
        try:
            ahead = json.loads(committed.metadata) if committed.metadata else {}
            return cls(committed.offset, {str(name): int(offset) for name, offset in ahead.items()})
        except (ValueError, TypeError, AttributeError):  # committed by another tool: only the offset counts
            return cls(committed.offset)

    def is_done(self, name: str, offset: int) -> bool:
        return offset < max(self.base, self.ahead.get(_hash(name), 0))

    @property
    def most(self) -> int:
        """The offset from which on no dead-letter record is handled."""
        return max(self.base, *self.ahead.values(), 0)

    def advance(self, name: str, offset: int) -> None:
        """Note that all dead-letter records of this name below `offset` are handled."""
        self.ahead[_hash(name)] = max(offset, self.ahead.get(_hash(name), 0))

    def committed(self) -> CommittedOffset:
        ahead = {name: offset for name, offset in self.ahead.items() if offset > self.base}
        metadata = json.dumps(ahead, separators=(",", ":")) if ahead else ""
        if len(metadata) > MOST_METADATA_BYTES:
            raise RedriveFailed(
                f"{len(ahead)} pipelines and rules were redriven one by one: their offsets do not fit into a "
                "commit, so nothing more was sent",
                advice="Redrive without --pipeline and --rule",
            )
        return CommittedOffset(self.base, metadata)


@cache
def _hash(name: str) -> str:
    return hashlib.blake2s(name.encode(), digest_size=4).hexdigest()


# ---- the work


class Originals:
    """Finds the original records of dead-letter records, and counts those that cannot be found."""

    def __init__(
        self, project: Project, clients: Clients, *, for_all: bool = False, by_epoch: bool = True
    ) -> None:
        self._by_epoch = by_epoch
        self.result = Redriven()
        self._project = project
        self._clients = clients
        self._for_all = for_all
        topics = clients.admin.describe_topics()
        self._partitions = {name: len(topic.partitions) for name, topic in topics.items()}
        # Bounded by the number of dead-letter records to send.
        self._met: set[tuple[object, ...]] = set()

    def dead_letter_partitions(self) -> list[TopicPartition]:
        topic = self._project.dead_letters
        return [TopicPartition(topic, number) for number in range(self._partitions.get(topic, 0))]

    def chunks(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[int, list[DeadLetter]]]:
        """The dead-letter records of a partition in chunks, each with the offset after it."""
        consumer = self._clients.consumer
        consumer.assign([partition])
        consumer.seek(partition, start)
        position = start
        while position < end:
            records = consumer.poll(timeout=POLL_S, max_records=CHUNK_RECORDS)
            # Without records the position may have moved past a gap in the log; else the broker is late.
            reached = records[-1].offset + 1 if records else consumer.position(partition)
            if reached <= position:
                raise RedriveFailed(
                    f"no record came from {partition} at offset {position} of {end} in {POLL_S:.0f} s",
                    advice="Try again when the broker answers: the redrive continues from there",
                )
            position = min(end, reached)
            yield position, [DeadLetter(record) for record in records if record.offset < end]

    def find(self, dead_letter: DeadLetter) -> Record | None:
        """The original record; None if nothing is sent back, which is counted."""
        if reason := self._why_not(dead_letter):
            self.result.kept[reason] += 1
        elif not self._is_first(dead_letter):
            self.result.repeated += 1
        elif dead_letter.content != dead_letters.IS_ELSEWHERE:
            return dead_letter.record
        else:
            found = self._look_up(dead_letter)
            if found is not None:
                return found
            reason = f"they do not carry the original record, which is no longer in {dead_letter.topic}"
            self.result.kept[reason] += 1
        return None

    def _why_not(self, dead_letter: DeadLetter) -> str:
        if dead_letter.content == dead_letters.IS_ROW:
            return (
                "they are rows of a table, or of a transform that dropped the columns of the original "
                "record: replay their pipeline instead"
            )
        if not dead_letter.topic:
            return "their headers do not name a topic"
        there = self._partitions.get(dead_letter.topic, 0)
        if not there:
            return f"their topic {dead_letter.topic} does not exist any more"
        if dead_letter.partition is not None and dead_letter.partition >= there:
            return f"partition {dead_letter.partition} of {dead_letter.topic} does not exist any more"
        return ""

    def _is_first(self, dead_letter: DeadLetter) -> bool:
        """True for the first dead-letter record of its original and reader in this redrive. Remembers it."""
        if dead_letter.offset is None:
            return True
        reader = () if self._for_all else (dead_letter.pipeline, dead_letter.epoch if self._by_epoch else "")
        # With the timestamp: a topic that was deleted and created again has the same offsets.
        record = (
            *reader,
            dead_letter.topic,
            dead_letter.partition,
            dead_letter.offset,
            dead_letter.timestamp,
        )
        if record in self._met:
            return False
        self._met.add(record)
        return True

    def _look_up(self, dead_letter: DeadLetter) -> Record | None:
        """Fetch the original record; None if it is no longer in its topic."""
        if dead_letter.partition is None or dead_letter.offset is None:
            return None
        partition = TopicPartition(dead_letter.topic, dead_letter.partition)
        consumer = self._clients.originals
        if dead_letter.offset < consumer.beginning_offsets([partition])[partition]:
            return None
        if dead_letter.offset >= consumer.end_offsets([partition])[partition]:
            return None
        consumer.assign([partition])
        consumer.seek(partition, dead_letter.offset)
        found = consumer.poll(timeout=POLL_S, max_records=1)
        if not found:
            raise RedriveFailed(
                f"the record at offset {dead_letter.offset} of {partition} did not arrive in {POLL_S:.0f} s",
                advice="Try again when the broker answers: the redrive continues from there",
            )
        is_it = found[0].offset == dead_letter.offset and dead_letter.timestamp in (None, found[0].timestamp)
        return found[0] if is_it else None  # a topic created again has another record there


class _Work(Originals):
    """One redrive: reads each partition of the dead-letter topic up to its present end."""

    def __init__(self, project: Project, clients: Clients, wanted: _Wanted) -> None:
        super().__init__(project, clients, for_all=wanted.for_all)
        self._group = project.group_of("redrive")
        self._wanted = wanted
        self._tables = RedrivenTables(project, wanted.definitions)
        state = State(project)
        self._attempts = {name: state.attempt(name) for name in wanted.definitions.pipelines}

    def run(self) -> None:
        chosen = self.dead_letter_partitions()
        committed = self._clients.admin.list_group_offsets(self._group)
        beginnings = self._clients.consumer.beginning_offsets(chosen)
        ends = self._clients.consumer.end_offsets(chosen)
        for partition in chosen:
            marks = Marks.of(committed.get(partition), beginnings[partition])
            start = max(marks.base, beginnings[partition])
            if start < ends[partition]:
                self._go_along(partition, marks, start, ends[partition])

    def _go_along(self, partition: TopicPartition, marks: Marks, start: int, end: int) -> None:
        first_waiting: int | None = None
        for position, chunk in self.chunks(partition, start, end):
            to_send: list[tuple[DeadLetter, Record]] = []
            for dead_letter in chunk:
                if not self._wanted.includes(dead_letter):
                    self.result.others.add(f"{dead_letter.pipeline}, {dead_letter.rule}")
                    continue
                is_sent = marks.is_done(dead_letter.name, dead_letter.record.offset)
                is_in_table = self._tables.have(dead_letter) or self._tables.settle(dead_letter)
                if is_sent or is_in_table or self._is_given_up(dead_letter):
                    continue
                if reason := self._why_later(dead_letter):
                    self.result.waiting[reason] += 1
                    first_waiting = dead_letter.record.offset if first_waiting is None else first_waiting
                    continue
                marks.advance(dead_letter.name, dead_letter.record.offset + 1)
                original = self.find(dead_letter)
                if original is not None:
                    to_send.append((dead_letter, original))
            if self._wanted.is_everything:
                marks.base = position if first_waiting is None else first_waiting
            self._finish(partition, marks, to_send)

    def _is_given_up(self, dead_letter: DeadLetter) -> bool:
        """True if a replay wrote the dead-letter record that was not finished."""
        attempt = self._attempts.get(dead_letter.pipeline)
        return attempt is not None and attempt.is_given_up(dead_letter.epoch)

    def _finish(
        self, partition: TopicPartition, marks: Marks, to_send: list[tuple[DeadLetter, Record]]
    ) -> None:
        """Send a chunk and commit that it was sent."""
        committed = marks.committed()
        for dead_letter, _ in to_send:
            self.result.sent[dead_letter.topic] += 1
            self.result.of_rows += dead_letter.source not in self._wanted.definitions.sources
        if self._wanted.dry_run:
            return
        refused = []
        under_way: list[tuple[DeadLetter, Record, Delivery]] = []
        for dead_letter, original in to_send:
            try:
                under_way.append((dead_letter, original, self._send_back(dead_letter, original)))
            except RecordTooLarge:
                refused.append((dead_letter, original))
        for dead_letter, original, delivery in under_way:
            try:
                delivery.result()
            except (RecordTooLarge, RecordRefused):
                refused.append((dead_letter, original))
        for dead_letter, original in refused:
            self._send_alone(dead_letter, original)
        self._clients.admin.alter_group_offsets(self._group, {partition: committed})

    def _send_alone(self, dead_letter: DeadLetter, original: Record) -> None:
        """Send a refused record again by itself: another record of its batch may have been the cause."""
        try:
            self._send_back(dead_letter, original).result()
        except RecordTooLarge:
            reason = f"with the headers of a redrive they are larger than {dead_letter.topic} accepts"
        except RecordRefused as error:
            reason = f"the broker refuses them: {error}"
        else:
            return
        self.result.sent[dead_letter.topic] -= 1
        self.result.kept[reason] += 1

    # ---- one dead-letter record

    def _why_later(self, dead_letter: DeadLetter) -> str:
        """Why the record is left for later; empty if it is not."""
        pipelines = self._wanted.definitions.pipelines
        if not self._wanted.for_all and dead_letter.pipeline not in pipelines:
            return (
                f"their pipeline {dead_letter.pipeline} is no longer in the project; --for-all sends them to "
                "all pipelines that read their topic"
            )
        return ""

    def _send_back(self, dead_letter: DeadLetter, original: Record) -> Delivery:
        """Send the original record to its partition, with its timestamp."""
        headers = [
            (name, value)
            for name, value in original.headers
            if name != REDRIVEN and not dead_letters.is_ours(name)
        ]
        times = _number(_text(dict(original.headers).get(REDRIVEN))) or 0
        headers.append((REDRIVEN, str(times + 1).encode()))
        if not self._wanted.for_all:
            headers.append((FOR, self._project.group_of(dead_letter.pipeline).encode()))
            address = (TOPIC, OFFSET, EPOCH, SOURCE)
            headers += [(name, dead_letter.headers[name]) for name in address if name in dead_letter.headers]
        return self._clients.producer.send(
            dead_letter.topic,
            original.value,
            key=original.key,
            headers=headers,
            partition=dead_letter.partition,
            timestamp=dead_letter.timestamp,
        )


def consumer_settings(project: Project) -> dict[str, str]:
    """Settings of a consumer without a group: a redrive itself commits what is redriven."""
    settings = project.client_settings("consumer")
    # If retention deletes records meanwhile, continue with the oldest one that is left.
    settings["auto.offset.reset"] = "earliest"
    return {name: value for name, value in settings.items() if name != "group.id"}


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value is not None else ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
