"""Dead-letter records, and the original records that they stand for: what all ways of redriving work with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.plain.producer import Producer
from klamm.client.results import Record, TopicPartition
from klamm.pipelines import dead_letters
from klamm.pipelines.addressing import EPOCH, OFFSET, SOURCE, TOPIC
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project
from pyspark_klamm.retried import PLACE, number

REDRIVEN = "klamm.redriven"
"""The header with the number of times that a record was sent back."""

CHUNK_RECORDS = 500
"""Records that are read, sent and committed together. Fewer would mean more requests."""

POLL_S = 5.0
"""How long to wait for the next records before giving up. The next redrive continues there."""


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
    late: int | None = None
    """How many of the records are older than the watermark of their pipeline, `watermark_ms`; None if that is
    not known."""
    watermark_ms: int | None = None

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
            **({"late": self.late} if self.late is not None else {}),
        }


# ---- dead-letter records


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
        self.partition = number(self._text(dead_letters.PARTITION))
        self.offset = number(self._text(OFFSET))
        self.timestamp = number(self._text(dead_letters.TIMESTAMP))
        self.content = self._text(dead_letters.CONTENT)
        self.epoch = self._text(EPOCH)
        self.place = self._text(PLACE)
        """Where the record lay in a retry topic; empty if it came from its own topic."""

    @property
    def retry_topic(self) -> str:
        """The retry topic that the record came through; empty if it came from its own topic."""
        return self.read_at[0] if self.place else ""

    @property
    def read_at(self) -> tuple[str, int | None, int | None]:
        """The topic, the partition and the offset at which the pipeline read the record."""
        at, _, offset = self.place.rpartition("/")
        topic, _, partition = at.rpartition("-")
        return (
            (topic, number(partition), number(offset)) if topic else (self.topic, self.partition, self.offset)
        )

    def _text(self, name: str) -> str:
        return _text(self.headers.get(name))


def of_the_original(record: Record) -> list[tuple[str, bytes | None]]:
    """The headers of a record without those that dead-letter records and redriven records get."""
    ours = (REDRIVEN, PLACE)
    return [
        (name, value) for name, value in record.headers if name not in ours and not dead_letters.is_ours(name)
    ]


def times_redriven(record: Record) -> int:
    """How often the original record was redriven."""
    return number(_text(dict(record.headers).get(REDRIVEN))) or 0


# ---- original records


class Found(NamedTuple):
    """A dead-letter record, and its original record."""

    dead_letter: DeadLetter
    original: Record


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
        for position, records in record_chunks(self._clients.consumer, partition, start, end):
            yield position, [DeadLetter(record) for record in records]

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


def record_chunks(
    consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> Iterator[tuple[int, list[Record]]]:
    """The records of a partition between two offsets in chunks, each with the offset after it."""
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
        yield position, [record for record in records if record.offset < end]


def consumer_settings(project: Project) -> dict[str, str]:
    """Settings of a consumer without a group: a redrive itself commits what is redriven."""
    settings = project.client_settings("consumer")
    # If retention deletes records meanwhile, continue with the oldest one that is left.
    settings["auto.offset.reset"] = "earliest"
    return {name: value for name, value in settings.items() if name != "group.id"}


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value is not None else ""
