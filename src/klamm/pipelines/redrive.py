"""Sends dead letters back to the topics they came from, each once, for the pipeline that had refused it.

A record that comes back says in a header for which pipeline it is; the others pass it over
(addressing.py), as they have had it. Each pipeline's letter of a record goes back on its own.

What was sent is committed in the group `<project>.redrive`: the offset up to which everything was, and in the
commit's metadata, for pipelines and rules that are further than that, how far they are. So a redrive of one
rule leaves the others for later, and a second one of all does not send the first ones again. Committed is
after a chunk was acknowledged: a process that is killed in between sends one chunk again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.client.errors import ClientError, RecordTooLarge, UnknownTopic
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Delivery, Producer
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.pipelines import dead_letters as letters
from klamm.pipelines.addressing import FOR, GENERATION, OFFSET
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project

REDRIVEN = "klamm.redriven"
"""The header that says how often a record has been sent back."""

CHUNK_RECORDS = 500
"""Records between two commits: what a killed redrive may send twice, against a commit for every record."""

POLL_S = 5.0
"""How long the next dead letters may take before it is given up: the next redrive begins with them."""


class RedriveFailed(PipelineError):
    """Dead letters cannot be read or sent."""


@dataclass
class Redriven:
    """What a redrive did: how many went back, by topic; how many could not, by reason.

    `repeated` are letters of records that another letter has just sent back to the same reader: a task that
    Spark ran again has sent its letters again; and what goes back for all needs no letter of each pipeline.
    """

    sent: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    repeated: int = 0

    @property
    def total(self) -> int:
        return sum(self.sent.values())


def redrive(
    project: Project,
    *,
    pipeline: str | None = None,
    rule: str | None = None,
    for_all: bool = False,
    dry_run: bool = False,
) -> Redriven:
    """Send back the dead letters there are now: all, or those of a pipeline, of a rule ("decode"), or both.

    With `for_all` they are for every pipeline that reads their topic, as any new record is. With `dry_run`
    nothing is sent or committed; the counts are those of a redrive.
    """
    readers = None if for_all else frozenset(load_definitions(project).pipelines)
    wanted = _Wanted(pipeline, rule, readers, dry_run)
    try:
        with (
            # Without the group: a consumer of it would commit what it has read, and we commit what was sent.
            Consumer(project.bootstrap, config=_without_group(project)) as consumer,
            Consumer(project.bootstrap, config=_without_group(project)) as originals,
            Producer(project.bootstrap, config=project.client_settings("producer")) as producer,
            Admin(project.bootstrap, config=project.client_settings("admin")) as admin,
        ):
            topics = set(admin.list_topics())
            if project.dead_letters not in topics:
                return Redriven()
            numbers = range(len(admin.describe_topic(project.dead_letters).partitions))
            partitions = [TopicPartition(project.dead_letters, number) for number in numbers]
            work = _Work(project, _Clients(consumer, originals, producer, admin), topics, wanted)
            work.run(partitions)
            return work.result
    except ClientError as error:
        advice = "Is the broker running?" if not isinstance(error, UnknownTopic) else ""
        raise RedriveFailed(
            f"the dead letters in {project.dead_letters} were not all sent: {error}", advice=advice
        ) from error


class _Wanted(NamedTuple):
    """What is to be sent back: of this pipeline and of this rule, or of all."""

    pipeline: str | None
    rule: str | None
    readers: frozenset[str] | None
    """The pipelines that letters can go back to; None: each goes back to all."""
    dry_run: bool

    def includes(self, letter: _Letter) -> bool:
        return self.pipeline in (None, letter.pipeline) and self.rule in (None, letter.rule)

    def is_for_nobody(self, letter: _Letter) -> bool:
        return self.readers is not None and letter.pipeline not in self.readers


class _Clients(NamedTuple):
    consumer: Consumer
    originals: Consumer
    """For records that letters do not carry."""
    producer: Producer
    admin: Admin


class _Letter:
    """A dead letter, by its headers."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.headers = dict(record.headers)
        self.pipeline = self._text(letters.PIPELINE)
        self.rule = self._text(letters.RULE)
        self.name = f"{self.pipeline}/{self.rule}"
        self.topic = self._text(letters.TOPIC)
        self.partition = self._number(letters.PARTITION)
        self.offset = self._number(OFFSET)
        self.timestamp = self._number(letters.TIMESTAMP)
        self.content = self._text(letters.CONTENT)

    def _text(self, name: str) -> str:
        return _text(self.headers.get(name))

    def _number(self, name: str) -> int | None:
        text = self._text(name)
        return int(text) if text.isdigit() else None


class _Looked(NamedTuple):
    """What a chunk of letters was: the names of those that are done with, and the first that waits."""

    names: set[str]
    waiting: int | None


@dataclass
class Marks:
    """How far one partition is redriven: everything below `base`, and more of some pipelines and rules."""

    base: int
    ahead: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, committed: CommittedOffset | None, beginning: int) -> Marks:
        if committed is None:
            return cls(beginning)
        try:
            ahead = json.loads(committed.metadata) if committed.metadata else {}
        except ValueError:  # committed by another tool, which means just the offset
            ahead = {}
        return cls(committed.offset, {str(name): int(offset) for name, offset in dict(ahead).items()})

    def is_done(self, name: str, offset: int) -> bool:
        return offset < max(self.base, self.ahead.get(name, 0))

    def committed(self) -> CommittedOffset:
        ahead = {name: offset for name, offset in self.ahead.items() if offset > self.base}
        return CommittedOffset(self.base, json.dumps(ahead, separators=(",", ":")) if ahead else "")


class _Work:
    """One redrive: goes along each partition up to its present end."""

    def __init__(self, project: Project, clients: _Clients, topics: set[str], wanted: _Wanted) -> None:
        self.result = Redriven()
        self._project = project
        self._group = project.group_of("redrive")
        self._clients = clients
        self._topics = topics
        self._wanted = wanted
        # Offsets by reader, topic and partition: no more numbers than there are letters to send back.
        self._met: dict[tuple[str, str, int | None], set[int]] = {}

    def run(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions)
        committed = self._clients.admin.list_group_offsets(self._group)
        beginnings = self._clients.consumer.beginning_offsets(chosen)
        ends = self._clients.consumer.end_offsets(chosen)
        for partition in chosen:
            marks = Marks.of(committed.get(partition), beginnings[partition])
            start = max(marks.base, beginnings[partition])
            if start < ends[partition]:
                self._go_along(partition, marks, start, ends[partition])

    def _go_along(self, partition: TopicPartition, marks: Marks, start: int, end: int) -> None:
        consumer = self._clients.consumer
        consumer.assign([partition])
        consumer.seek(partition, start)
        all_of_it = self._wanted.pipeline is None and self._wanted.rule is None
        position = start
        while position < end:
            records = consumer.poll(timeout=POLL_S, max_records=CHUNK_RECORDS)
            looked = self._send([record for record in records if record.offset < end], marks)
            # Without records it may have gone on behind a gap; else the broker is late, and nothing is done.
            reached = records[-1].offset + 1 if records else consumer.position(partition)
            if reached <= position:
                raise RedriveFailed(
                    f"no dead letter came from {partition} at offset {position} of {end} in {POLL_S:.0f} s",
                    advice="Try again when the broker answers: it goes on from there",
                )
            position = min(end, reached)
            if all_of_it and looked.waiting is not None:
                all_of_it = False
                marks.base = looked.waiting
            if all_of_it:
                marks.base = position
            else:
                marks.ahead |= dict.fromkeys(looked.names, position)
            if not self._wanted.dry_run:
                self._clients.admin.alter_group_offsets(self._group, {partition: marks.committed()})

    def _send(self, records: Iterable[Record], marks: Marks) -> _Looked:
        """Send what shall be sent and was not."""
        names: set[str] = set()
        waiting: int | None = None
        under_way: list[tuple[_Letter, Delivery]] = []
        for letter in map(_Letter, records):
            if not self._wanted.includes(letter):
                continue
            is_done = marks.is_done(letter.name, letter.record.offset)
            if not is_done and self._wanted.is_for_nobody(letter):
                waiting = letter.record.offset if waiting is None else waiting
                self._keep(
                    f"their pipeline {letter.pipeline} is not in the project any more; --for-all sends them "
                    "to all that read their topic"
                )
                continue
            names.add(letter.name)
            original = None if is_done else self._original(letter)
            if original is None:
                continue
            self.result.sent[letter.topic] = self.result.sent.get(letter.topic, 0) + 1
            if not self._wanted.dry_run:
                self._send_back(letter, original, under_way)
        for letter, delivery in under_way:
            with self._too_large_is_kept(letter):
                delivery.result()
        return _Looked(names, waiting)

    @contextmanager
    def _too_large_is_kept(self, letter: _Letter) -> Iterator[None]:
        try:
            yield
        except RecordTooLarge:
            self.result.sent[letter.topic] -= 1
            self._keep(f"with the headers of a redrive they are larger than {letter.topic} takes")

    def _original(self, letter: _Letter) -> Record | None:
        """The record that a letter was made of; None, and counted, if it does not go back."""
        if reason := self._why_not(letter):
            self._keep(reason)
        elif not self._is_first(letter):
            self.result.repeated += 1
        elif letter.content != letters.IS_ELSEWHERE:
            return letter.record
        else:
            found = self._look_up(letter)
            if found is not None:
                return found
            self._keep(f"they do not carry their records, which are not in {letter.topic} any more")
        return None

    def _keep(self, reason: str) -> None:
        self.result.kept[reason] = self.result.kept.get(reason, 0) + 1

    def _is_first(self, letter: _Letter) -> bool:
        """Whether no letter of the same record was met before in this redrive; noted from now on."""
        if letter.offset is None:
            return True
        reader = "" if self._wanted.readers is None else letter.pipeline
        met = self._met.setdefault((reader, letter.topic, letter.partition), set())
        if letter.offset in met:
            return False
        met.add(letter.offset)
        return True

    def _look_up(self, letter: _Letter) -> Record | None:
        """The record where a letter says that it is; None if it is not there any more."""
        if letter.partition is None or letter.offset is None:
            return None
        partition = TopicPartition(letter.topic, letter.partition)
        consumer = self._clients.originals
        consumer.assign([partition])
        consumer.seek(partition, letter.offset)
        found = consumer.poll(timeout=POLL_S, max_records=1)
        return found[0] if found and found[0].offset == letter.offset else None

    def _send_back(
        self, letter: _Letter, original: Record, under_way: list[tuple[_Letter, Delivery]]
    ) -> None:
        """Send the record to its old partition, with its old time."""
        headers = [
            (name, value) for name, value in original.headers if not name.startswith(letters.HEADER_PREFIX)
        ]
        times = int(_text(dict(original.headers).get(REDRIVEN)) or 0) + 1
        headers.append((REDRIVEN, str(times).encode()))
        if self._wanted.readers is not None:
            headers.append((FOR, self._project.group_of(letter.pipeline).encode()))
            headers += [
                (name, letter.headers[name]) for name in (GENERATION, OFFSET) if name in letter.headers
            ]
        with self._too_large_is_kept(letter):
            delivery = self._clients.producer.send(
                letter.topic,
                original.value,
                key=original.key,
                headers=headers,
                partition=letter.partition,
                timestamp=letter.timestamp,
            )
            under_way.append((letter, delivery))

    def _why_not(self, letter: _Letter) -> str:
        if not letter.topic:
            return "they do not say which topic they came from"
        if letter.topic not in self._topics:
            return f"their topic {letter.topic} is not there any more"
        if letter.content == letters.IS_ROW:
            return "they are rows of a transform that does not carry the record they came from"
        return ""


def _without_group(project: Project) -> dict[str, str]:
    settings = project.client_settings("consumer")
    # Letters that retention takes away meanwhile are gone; those behind them are not.
    settings["auto.offset.reset"] = "earliest"
    return {name: value for name, value in settings.items() if name != "group.id"}


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value is not None else ""
