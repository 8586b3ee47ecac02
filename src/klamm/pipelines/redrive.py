"""Sends dead letters back to the topics they came from, each once.

What was sent is committed in the group `<project>.redrive`: the offset up to which everything was, and in the
commit's metadata, for pipelines and rules that are further than that, how far they are. So a redrive of one
rule leaves the others for later, and a second one of all does not send the first ones again. Committed is
after a chunk was acknowledged: a process that is killed in between sends one chunk again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from klamm.client.errors import ClientError, UnknownTopic
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Delivery, Producer
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.pipelines import dead_letters as letters
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

    `repeated` are letters of records that another letter has just sent back: each pipeline that reads a
    source has its own letter of a bad record, and the record that goes back is read by all of them.
    """

    sent: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    repeated: int = 0

    @property
    def total(self) -> int:
        return sum(self.sent.values())


def redrive(
    project: Project, *, pipeline: str | None = None, rule: str | None = None, dry_run: bool = False
) -> Redriven:
    """Send back the dead letters there are now: all, or those of a pipeline, of a rule ("decode"), or both.

    With `dry_run` nothing is sent or committed; the counts are those of a redrive.
    """
    group = f"{project.name}.redrive"
    try:
        with (
            # Without the group: a consumer of it would commit what it has read, and we commit what was sent.
            Consumer(project.bootstrap, config=_without_group(project)) as consumer,
            Producer(project.bootstrap, config=project.client_settings("producer")) as producer,
            Admin(project.bootstrap, config=project.client_settings("admin")) as admin,
        ):
            topics = set(admin.list_topics())
            if project.dead_letters not in topics:
                return Redriven()
            numbers = range(len(admin.describe_topic(project.dead_letters).partitions))
            partitions = [TopicPartition(project.dead_letters, number) for number in numbers]
            work = _Work(consumer, producer, admin, group, topics, pipeline, rule, dry_run)
            work.run(partitions)
            return work.result
    except ClientError as error:
        advice = "Is the broker running?" if not isinstance(error, UnknownTopic) else ""
        raise RedriveFailed(
            f"the dead letters in {project.dead_letters} were not all sent: {error}", advice=advice
        ) from error


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

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        admin: Admin,
        group: str,
        topics: set[str],
        pipeline: str | None,
        rule: str | None,
        dry_run: bool,
    ) -> None:
        self.result = Redriven()
        self._consumer = consumer
        self._producer = producer
        self._admin = admin
        self._group = group
        self._topics = topics
        self._pipeline = pipeline
        self._rule = rule
        self._dry_run = dry_run
        # Offsets by topic and partition: no more numbers than there are letters to send back.
        self._met: dict[tuple[str, str], set[int]] = {}

    def run(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions)
        committed = self._admin.list_group_offsets(self._group)
        beginnings = self._consumer.beginning_offsets(chosen)
        ends = self._consumer.end_offsets(chosen)
        for partition in chosen:
            marks = Marks.of(committed.get(partition), beginnings[partition])
            start = max(marks.base, beginnings[partition])
            if start < ends[partition]:
                self._go_along(partition, marks, start, ends[partition])

    def _go_along(self, partition: TopicPartition, marks: Marks, start: int, end: int) -> None:
        self._consumer.assign([partition])
        self._consumer.seek(partition, start)
        all_of_it = self._pipeline is None and self._rule is None
        position = start
        while position < end:
            records = self._consumer.poll(timeout=POLL_S, max_records=CHUNK_RECORDS)
            chunk = [record for record in records if record.offset < end]
            touched = self._send(chunk, marks)
            # Without records it may have gone on behind a gap; else the broker is late, and nothing is done.
            reached = records[-1].offset + 1 if records else self._consumer.position(partition)
            if reached <= position:
                raise RedriveFailed(
                    f"no dead letter came from {partition} at offset {position} of {end} in {POLL_S:.0f} s",
                    advice="Try again when the broker answers: it goes on from there",
                )
            position = min(end, reached)
            if all_of_it:
                marks.base = position
            else:
                marks.ahead |= dict.fromkeys(touched, position)
            if not self._dry_run:
                self._admin.alter_group_offsets(self._group, {partition: marks.committed()})

    def _send(self, records: Iterable[Record], marks: Marks) -> set[str]:
        """Send what shall be sent and was not; return the names of what was looked at."""
        touched: set[str] = set()
        deliveries = []
        for record in records:
            headers = dict(record.headers)
            pipeline, rule = _text(headers.get(letters.PIPELINE)), _text(headers.get(letters.RULE))
            if self._pipeline not in (None, pipeline) or self._rule not in (None, rule):
                continue
            name = f"{pipeline}/{rule}"
            touched.add(name)
            if marks.is_done(name, record.offset):
                continue
            topic = _text(headers.get(letters.TOPIC))
            if reason := self._why_not(topic, headers):
                self.result.kept[reason] = self.result.kept.get(reason, 0) + 1
                continue
            if not self._is_first(topic, headers):
                self.result.repeated += 1
                continue
            self.result.sent[topic] = self.result.sent.get(topic, 0) + 1
            if not self._dry_run:
                deliveries.append(self._send_original(topic, record, headers))
        for delivery in deliveries:
            delivery.result()
        return touched

    def _is_first(self, topic: str, headers: dict[str, bytes | None]) -> bool:
        """Whether no letter of the same record was met before in this redrive; noted from now on."""
        partition, offset = _text(headers.get(letters.PARTITION)), _text(headers.get(letters.OFFSET))
        if not offset.isdigit():
            return True
        met = self._met.setdefault((topic, partition), set())
        if int(offset) in met:
            return False
        met.add(int(offset))
        return True

    def _send_original(self, topic: str, record: Record, headers: dict[str, bytes | None]) -> Delivery:
        """The record that a dead letter was made of, in its old partition and with its old time."""
        kept = [(name, value) for name, value in record.headers if not name.startswith(letters.HEADER_PREFIX)]
        times = int(_text(headers.get(REDRIVEN)) or 0) + 1
        partition, timestamp = _text(headers.get(letters.PARTITION)), _text(headers.get(letters.TIMESTAMP))
        return self._producer.send(
            topic,
            record.value,
            key=record.key,
            headers=[*kept, (REDRIVEN, str(times).encode())],
            partition=int(partition) if partition.isdigit() else None,
            timestamp=int(timestamp) if timestamp.isdigit() else None,
        )

    def _why_not(self, topic: str, headers: dict[str, bytes | None]) -> str:
        if not topic:
            return "they do not say which topic they came from"
        if topic not in self._topics:
            return f"their topic {topic} is not there any more"
        if _text(headers.get(letters.CONTENT)) == "row":
            return "they are rows of a transform that does not carry the record they came from"
        return ""


def _without_group(project: Project) -> dict[str, str]:
    settings = project.client_settings("consumer")
    # Letters that retention takes away meanwhile are gone; those behind them are not.
    settings["auto.offset.reset"] = "earliest"
    return {name: value for name, value in settings.items() if name != "group.id"}


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value is not None else ""
