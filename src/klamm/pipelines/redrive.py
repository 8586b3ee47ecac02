"""Sends dead letters back to the topics they came from, each once, for the pipeline that had refused it.

A record that comes back says in its headers for which pipeline it is, and of which record it is; pipelines
that have had it, or will, pass it over (addressing.py). Each pipeline's letter of a record goes back on its
own.

What was sent is committed in the group `<project>.redrive`: the offset up to which everything was, and in the
commit's metadata, for pipelines and rules that are further than that, how far they are. So a redrive of one
rule leaves the others for later, and a second one of all does not send the first ones again. Letters of a
pipeline that is not there wait, all of them. Committed is after a chunk was acknowledged: a process that is
killed in between sends one chunk again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from klamm.client.errors import BrokerError, ClientError, RecordRefused, RecordTooLarge
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Delivery, Producer
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.pipelines import dead_letters as letters
from klamm.pipelines.addressing import EPOCH, FOR, OFFSET, SOURCE, TOPIC
from klamm.pipelines.definitions import Definitions
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project
from klamm.pipelines.state import State

REDRIVEN = "klamm.redriven"
"""The header that says how often a record has been sent back."""

CHUNK_RECORDS = 500
"""Records between two commits: what a killed redrive may send twice, against a commit for every record."""

POLL_S = 5.0
"""How long the next dead letters may take before it is given up: the next redrive begins with them."""

MOST_METADATA_BYTES = 4000
"""Brokers take 4,096 bytes with a committed offset, unless they are told otherwise."""


class RedriveFailed(PipelineError):
    """Dead letters cannot be read or sent."""


@dataclass
class Redriven:
    """What a redrive did: how many went back, by topic; how many wait, and cannot go back, by reason.

    `repeated` are letters of records that another letter has just sent back to the same reader: a task that
    Spark ran again has sent its letters again; and what goes back for all needs no letter of each pipeline.
    `of_rows` of those that went back had been refused by a rule behind a source: other rows may have been
    made of the same record, which are made again. `others` are the names of letters that were not wanted.
    """

    sent: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    of_rows: int = 0
    others: set[str] = field(default_factory=set)

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
        }


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
    wanted = _Wanted(pipeline, rule, for_all, dry_run, load_definitions(project))
    alone = nullcontext() if dry_run else State(project).lock("sending dead letters back", "redrive.lock")
    try:
        with (
            alone,
            # Without the group: a consumer of it would commit what it has read, and we commit what was sent.
            Consumer(project.bootstrap, config=_without_group(project)) as consumer,
            Consumer(project.bootstrap, config=_without_group(project)) as originals,
            Producer(project.bootstrap, config=project.client_settings("producer")) as producer,
            Admin(project.bootstrap, config=project.client_settings("admin")) as admin,
        ):
            work = _Work(project, _Clients(consumer, originals, producer, admin), wanted)
            work.run()
            return work.result
    except ClientError as error:
        raise RedriveFailed(
            f"the dead letters in {project.dead_letters} were not all sent: {error}",
            advice="" if isinstance(error, BrokerError) else "Is the broker running?",
        ) from error


# ---- what is read and what is wanted


class Letter:
    """A dead letter, by its headers."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.headers = dict(record.headers)
        self.pipeline = self._text(letters.PIPELINE)
        self.rule = self._text(letters.RULE)
        self.name = f"{self.pipeline}/{self.rule}"
        self.source = self._text(SOURCE)
        self.topic = self._text(TOPIC)
        self.partition = _number(self._text(letters.PARTITION))
        self.offset = _number(self._text(OFFSET))
        self.timestamp = _number(self._text(letters.TIMESTAMP))
        self.content = self._text(letters.CONTENT)
        self.epoch = self._text(EPOCH)

    def _text(self, name: str) -> str:
        return _text(self.headers.get(name))


class _Wanted(NamedTuple):
    """What is to be sent back: of this pipeline and of this rule, or of all."""

    pipeline: str | None
    rule: str | None
    for_all: bool
    dry_run: bool
    definitions: Definitions

    @property
    def is_everything(self) -> bool:
        return self.pipeline is None and self.rule is None

    def includes(self, letter: Letter) -> bool:
        return self.pipeline in (None, letter.pipeline) and self.rule in (None, letter.rule)


class _Clients(NamedTuple):
    consumer: Consumer
    originals: Consumer
    """For records that letters do not carry."""
    producer: Producer
    admin: Admin


# ---- how far it is


@dataclass
class Marks:
    """How far one partition is redriven: everything below `base`, and more of some pipelines and rules.

    These are named by a few letters of a hash: there may be many, and a commit has little room.
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
        except (ValueError, TypeError, AttributeError):  # by another tool, which means just the offset
            return cls(committed.offset)

    def is_done(self, name: str, offset: int) -> bool:
        return offset < max(self.base, self.ahead.get(_hash(name), 0))

    def advance(self, name: str, offset: int) -> None:
        """All letters of this name below the offset are done with."""
        self.ahead[_hash(name)] = max(offset, self.ahead.get(_hash(name), 0))

    def committed(self) -> CommittedOffset:
        ahead = {name: offset for name, offset in self.ahead.items() if offset > self.base}
        metadata = json.dumps(ahead, separators=(",", ":")) if ahead else ""
        if len(metadata) > MOST_METADATA_BYTES:
            raise RedriveFailed(
                f"too many pipelines and rules were sent back one by one, {len(ahead)}: how far each is "
                "could not be noted, so that nothing more was sent",
                advice="Send the others back, too: redrive without --pipeline and --rule",
            )
        return CommittedOffset(self.base, metadata)


@cache
def _hash(name: str) -> str:
    return hashlib.blake2s(name.encode(), digest_size=4).hexdigest()


# ---- the work


class _Work:
    """One redrive: goes along each partition up to its present end."""

    def __init__(self, project: Project, clients: _Clients, wanted: _Wanted) -> None:
        self.result = Redriven()
        self._project = project
        self._group = project.group_of("redrive")
        self._clients = clients
        self._wanted = wanted
        topics = clients.admin.describe_topics()
        self._partitions = {name: len(topic.partitions) for name, topic in topics.items()}
        # No more than there are letters to send back.
        self._met: set[tuple[object, ...]] = set()

    def run(self) -> None:
        letters_in = self._project.dead_letters
        chosen = [TopicPartition(letters_in, number) for number in range(self._partitions.get(letters_in, 0))]
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
        first_waiting: int | None = None
        position = start
        while position < end:
            records = consumer.poll(timeout=POLL_S, max_records=CHUNK_RECORDS)
            # Without records it may have gone on behind a gap; else the broker is late, and nothing is done.
            reached = records[-1].offset + 1 if records else consumer.position(partition)
            if reached <= position:
                raise RedriveFailed(
                    f"no dead letter came from {partition} at offset {position} of {end} in {POLL_S:.0f} s",
                    advice="Try again when the broker answers: it goes on from there",
                )
            position = min(end, reached)
            to_send: list[tuple[Letter, Record]] = []
            for letter in map(Letter, (record for record in records if record.offset < end)):
                if not self._wanted.includes(letter):
                    self.result.others.add(f"{letter.pipeline}, {letter.rule}")
                    continue
                if marks.is_done(letter.name, letter.record.offset):
                    continue
                if reason := self._why_later(letter):
                    self.result.waiting[reason] += 1
                    first_waiting = letter.record.offset if first_waiting is None else first_waiting
                    continue
                marks.advance(letter.name, letter.record.offset + 1)
                original = self._original(letter)
                if original is not None:
                    to_send.append((letter, original))
            if self._wanted.is_everything:
                marks.base = position if first_waiting is None else first_waiting
            self._finish(partition, marks, to_send)

    def _finish(self, partition: TopicPartition, marks: Marks, to_send: list[tuple[Letter, Record]]) -> None:
        """Send a chunk, and note that it was."""
        committed = marks.committed()
        for letter, _ in to_send:
            self.result.sent[letter.topic] += 1
            self.result.of_rows += letter.source not in self._wanted.definitions.sources
        if self._wanted.dry_run:
            return
        refused = []
        under_way: list[tuple[Letter, Record, Delivery]] = []
        for letter, original in to_send:
            try:
                under_way.append((letter, original, self._send_back(letter, original)))
            except RecordTooLarge:
                refused.append((letter, original))
        for letter, original, delivery in under_way:
            try:
                delivery.result()
            except (RecordTooLarge, RecordRefused):
                refused.append((letter, original))
        for letter, original in refused:
            self._send_alone(letter, original)
        self._clients.admin.alter_group_offsets(self._group, {partition: committed})

    def _send_alone(self, letter: Letter, original: Record) -> None:
        """One that was refused: perhaps for another that was in the same batch."""
        try:
            self._send_back(letter, original).result()
        except RecordTooLarge:
            reason = f"with the headers of a redrive they are larger than {letter.topic} takes"
        except RecordRefused as error:
            reason = f"the broker refuses them: {error}"
        else:
            return
        self.result.sent[letter.topic] -= 1
        self.result.kept[reason] += 1

    # ---- one letter

    def _why_later(self, letter: Letter) -> str:
        """Why all letters of a pipeline must wait; nothing if they need not."""
        pipelines = self._wanted.definitions.pipelines
        if not self._wanted.for_all and letter.pipeline not in pipelines:
            return (
                f"their pipeline {letter.pipeline} is not in the project any more; --for-all sends them "
                "to all that read their topic"
            )
        return ""

    def _original(self, letter: Letter) -> Record | None:
        """The record that a letter was made of; None, and counted, if it does not go back."""
        if reason := self._why_not(letter):
            self.result.kept[reason] += 1
        elif not self._is_first(letter):
            self.result.repeated += 1
        elif letter.content != letters.IS_ELSEWHERE:
            return letter.record
        else:
            found = self._look_up(letter)
            if found is not None:
                return found
            reason = f"they do not carry their records, which are not in {letter.topic} any more"
            self.result.kept[reason] += 1
        return None

    def _why_not(self, letter: Letter) -> str:
        if not letter.topic:
            return "they do not say which topic they came from"
        there = self._partitions.get(letter.topic, 0)
        if not there:
            return f"their topic {letter.topic} is not there any more"
        if letter.partition is not None and letter.partition >= there:
            return f"partition {letter.partition} of {letter.topic} is not there any more"
        if letter.content == letters.IS_ROW:
            return "they are rows of a transform that does not carry the record they came from"
        return ""

    def _is_first(self, letter: Letter) -> bool:
        """Whether no letter of the same record was met before in this redrive; noted from now on."""
        if letter.offset is None:
            return True
        reader = () if self._wanted.for_all else (letter.pipeline, letter.epoch)
        # The time, too: a topic that was made anew has the same offsets again.
        record = (*reader, letter.topic, letter.partition, letter.offset, letter.timestamp)
        if record in self._met:
            return False
        self._met.add(record)
        return True

    def _look_up(self, letter: Letter) -> Record | None:
        """The record where a letter says that it is; None if it is not there any more."""
        if letter.partition is None or letter.offset is None:
            return None
        partition = TopicPartition(letter.topic, letter.partition)
        consumer = self._clients.originals
        if letter.offset < consumer.beginning_offsets([partition])[partition]:
            return None
        if letter.offset >= consumer.end_offsets([partition])[partition]:
            return None
        consumer.assign([partition])
        consumer.seek(partition, letter.offset)
        found = consumer.poll(timeout=POLL_S, max_records=1)
        if not found:
            raise RedriveFailed(
                f"the record at offset {letter.offset} of {partition} did not come in {POLL_S:.0f} s",
                advice="Try again when the broker answers: it goes on from there",
            )
        is_it = found[0].offset == letter.offset and letter.timestamp in (None, found[0].timestamp)
        return found[0] if is_it else None  # a topic that was made anew has another there

    def _send_back(self, letter: Letter, original: Record) -> Delivery:
        """The record to its old partition, with its old time."""
        headers = [
            (name, value)
            for name, value in original.headers
            if name != REDRIVEN and not letters.is_ours(name)
        ]
        times = _number(_text(dict(original.headers).get(REDRIVEN))) or 0
        headers.append((REDRIVEN, str(times + 1).encode()))
        if not self._wanted.for_all:
            headers.append((FOR, self._project.group_of(letter.pipeline).encode()))
            told = (TOPIC, OFFSET, EPOCH, SOURCE)
            headers += [(name, letter.headers[name]) for name in told if name in letter.headers]
        return self._clients.producer.send(
            letter.topic,
            original.value,
            key=original.key,
            headers=headers,
            partition=letter.partition,
            timestamp=letter.timestamp,
        )


def _without_group(project: Project) -> dict[str, str]:
    settings = project.client_settings("consumer")
    # Letters that retention takes away meanwhile are gone; those behind them are not.
    settings["auto.offset.reset"] = "earliest"
    return {name: value for name, value in settings.items() if name != "group.id"}


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value is not None else ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
