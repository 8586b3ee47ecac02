"""Redrive to topics: sends dead-letter records back to the topics they came from, each once.

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
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from klamm.client.errors import BrokerError, ClientError, RecordRefused, RecordTooLarge
from klamm.client.plain.producer import Delivery
from klamm.client.results import CommittedOffset, Record, TopicPartition
from klamm.pipelines.addressing import EPOCH, FOR, OFFSET, RETRIED_FROM, SOURCE, TOPIC
from klamm.pipelines.definitions import Definitions
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.originals import (
    REDRIVEN,
    Clients,
    DeadLetter,
    Originals,
    RedriveFailed,
    Redriven,
    of_the_original,
    open_clients,
    times_redriven,
)
from klamm.pipelines.project import Project
from klamm.pipelines.redriven_tables import RedrivenTables
from klamm.pipelines.retry.sent import RetriedRecords
from klamm.pipelines.state import State

MOST_METADATA_BYTES = 4000
"""Brokers accept 4,096 bytes of metadata with a committed offset by default."""


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


class _Work(Originals):
    """One redrive: reads each partition of the dead-letter topic up to its present end."""

    def __init__(self, project: Project, clients: Clients, wanted: _Wanted) -> None:
        super().__init__(project, clients, for_all=wanted.for_all)
        self._group = project.group_of("redrive")
        self._wanted = wanted
        self._tables = RedrivenTables(project, wanted.definitions)
        self._retried = RetriedRecords(project, wanted.definitions, clients)
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
                if marks.is_done(dead_letter.name, dead_letter.record.offset):
                    continue
                is_in_table = self._tables.have(dead_letter) or self._tables.settle(dead_letter)
                is_redriven = is_in_table or self._retried.have(dead_letter)
                if is_redriven or self._is_given_up(dead_letter):
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
        headers = of_the_original(original)
        headers.append((REDRIVEN, str(times_redriven(original) + 1).encode()))
        if not self._wanted.for_all:
            headers.append((FOR, self._project.group_of(dead_letter.pipeline).encode()))
            address = (TOPIC, OFFSET, EPOCH, SOURCE)
            headers += [(name, dead_letter.headers[name]) for name in address if name in dead_letter.headers]
            if dead_letter.place:
                headers.append((RETRIED_FROM, dead_letter.place.encode()))
        return self._clients.producer.send(
            dead_letter.topic,
            original.value,
            key=original.key,
            headers=headers,
            partition=dead_letter.partition,
            timestamp=dead_letter.timestamp,
        )
