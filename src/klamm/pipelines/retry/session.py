"""One redrive's access to a retry topic: reads what was sent, shuts out earlier redrives, and sends.

`open` writes an opening under the next epoch of the producer id that the last redrive had. From that moment
on the broker takes nothing more of that redrive, also nothing that a killed process still had on the way. So
what lies before the opening is all that was sent, and stays so. If two redrives begin at the same time, on
machines that do not share a lock, the one whose opening is later goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from klamm.client.admin.types import ConfigResource
from klamm.client.errors import ClientError, RecordRefused, RecordTooLarge, TopicExists
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.pipelines.originals import RedriveFailed, record_chunks
from klamm.pipelines.project import Project
from klamm.pipelines.retry.log import (
    MARKS,
    MOST_EPOCH,
    OPENING,
    SINCE,
    Headers,
    Identity,
    Marks,
    Opening,
    Place,
    RetryLog,
    note,
    since_of,
)
from klamm.pipelines.retry.topics import RETRY_PARTITION
from klamm.pipelines.retry.writer import OrderedWriter, Outgoing

MOST_BATCH_BYTES = 512 * 1024
"""How much is sent at a time: below what a broker takes by default, 1 MB."""

HEADERS_BYTES = 64 * 1024
"""How much larger records of a retry topic may be than those of the topics that they come from."""

OPENING_TRIES = 5
"""How often a redrive tries to be the last one to begin."""

_TOPIC_SETTINGS = {
    # The records say what was redriven: they must stay.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
}
_SIZE = "max.message.bytes"


class NotesGone(RedriveFailed):
    """A retry topic has lost the records that say what was redriven."""


class Retried(NamedTuple):
    """A record to send, and the place of its dead-letter record."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def bytes(self) -> int:
        known = sum(len(name) + len(value or b"") for name, value in self.headers)
        return known + len(self.key or b"") + len(self.value or b"")


class RetrySession:
    """One redrive through one retry topic."""

    def __init__(
        self, project: Project, consumer: Consumer, admin: Admin, topic: str, dead_letters_id: str
    ) -> None:
        self.topic = topic
        self._project = project
        self._consumer = consumer
        self._admin = admin
        self._partition = TopicPartition(topic, int(RETRY_PARTITION))
        self._topic_id = dead_letters_id
        self._redrive = secrets.token_hex(8)
        self._opening: Opening | None = None
        self._since = 0

    def read(self) -> RetryLog:
        """What the retry topic, which exists, says now."""
        beginning = self._consumer.beginning_offsets([self._partition])[self._partition]
        end = self._consumer.end_offsets([self._partition])[self._partition]
        log = RetryLog()
        if end == 0:
            return log.of(self._topic_id)
        since = 0
        for record in self._records(end - 1, end) if beginning < end else ():
            since = since_of(record) or 0
        if since < beginning:
            raise NotesGone(
                f"{self.topic} begins at offset {beginning}, and the record at {since}, which says what was "
                "redriven, is gone: redriving could send dead-letter records twice",
                advice="Keep all records of a retry topic (retention.ms=-1). --to-topic redrives without it",
            )
        for record in self._records(since, end):
            log.take(record)
        return log.of(self._topic_id)

    def create(self, from_topics: Sequence[str]) -> None:
        """Create the retry topic, unless it exists. Its records may be a little larger than those of these
        topics."""
        settings = dict(_TOPIC_SETTINGS)
        try:
            resources = [ConfigResource.topic(name) for name in from_topics]
            found = self._admin.describe_configs(resources, [_SIZE])
            sizes = [int(each[_SIZE].value or 0) for each in found.values() if _SIZE in each]
            settings[_SIZE] = str(max(sizes, default=0) + HEADERS_BYTES)
        except (ClientError, ValueError):
            pass  # not allowed to look: the brokers' default holds
        try:
            self._admin.create_topic(self.topic, 1, configs=settings)
        except TopicExists:
            return
        except ClientError as error:
            raise RedriveFailed(
                f"the retry topic {self.topic} does not exist, and cannot be created: {error}",
                advice="Create it with one partition and retention.ms=-1",
            ) from error

    def open(self, writer: OrderedWriter) -> RetryLog:
        """Shut out earlier redrives. Returns what they have sent."""
        log = self.read()
        for _ in range(OPENING_TRIES):
            shut_out = log.newest_but(self._redrive)
            for identity in _identities(shut_out, writer):
                writer.begin(identity)
                self._opening = Opening(self._redrive, identity, self._topic_id)
                writer.write([Outgoing(None, *note(OPENING, self._opening, log.since))])
            log = self.read()
            is_last = bool(log.openings) and log.openings[-1] == self._opening
            if is_last and log.newest_but(self._redrive) == shut_out:
                self._since = log.since
                return log
        raise RedriveFailed(
            f"another redrive writes to {self.topic}", advice="Let it end, then redrive what is left"
        )

    def send(self, writer: OrderedWriter, records: Sequence[Retried]) -> dict[Place, str]:
        """Send the records in order. Returns those that the broker refuses, and why."""
        refused: dict[Place, str] = {}
        for batch in _batches(records):
            refused |= self._send_batch(writer, batch)
        return refused

    def close(self, writer: OrderedWriter, marks: Marks) -> None:
        """Note what is redriven now."""
        assert self._opening is not None
        writer.write([Outgoing(None, *note(MARKS, self._opening, self._since, marks))])

    # ---- inside

    def _send_batch(self, writer: OrderedWriter, batch: Sequence[Retried]) -> Mapping[Place, str]:
        since = (SINCE, str(self._since).encode())
        try:
            writer.write([Outgoing(each.key, each.value, [*each.headers, since]) for each in batch])
        except (RecordTooLarge, RecordRefused) as error:
            if len(batch) == 1:
                if isinstance(error, RecordTooLarge):
                    return {batch[0].place: f"they are larger than {self.topic} accepts ({_SIZE})"}
                return {batch[0].place: f"the broker refuses them: {error}"}
        else:
            return {}
        # One of them may be the cause.
        refused: dict[Place, str] = {}
        for each in batch:
            refused |= self._send_batch(writer, [each])
        return refused

    def _records(self, start: int, end: int) -> Iterator[Record]:
        for _, records in record_chunks(self._consumer, self._partition, start, end):
            yield from records


def _identities(shut_out: Identity | None, writer: OrderedWriter) -> list[Identity]:
    """The identities to begin under, one after the other: that which shuts out the last redrive, and a new
    one if no later epoch would be left for the next redrive."""
    later = shut_out.next() if shut_out is not None else None
    if later is None:
        return [writer.new_identity()]
    return [later] if later.epoch < MOST_EPOCH else [later, writer.new_identity()]


def _batches(records: Sequence[Retried]) -> Iterator[list[Retried]]:
    batch: list[Retried] = []
    size = 0
    for record in records:
        if batch and size + record.bytes > MOST_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.bytes
    if batch:
        yield batch
