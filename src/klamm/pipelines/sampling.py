"""Reads sample records of topics with our client, to infer schemas and for lint.

Commits nothing and joins no group. Waits are short, since a user waits at a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from klamm.client.errors import ClientError, UnknownTopic
from klamm.client.plain.admin import Admin
from klamm.client.plain.consumer import Consumer
from klamm.client.results import Record, TopicPartition
from klamm.pipelines.errors import SamplingFailed
from klamm.pipelines.project import Project

SAMPLED_RECORDS = 1000
"""How many records are read: enough to find rare fields, and read within a second."""

ANSWER_TIMEOUT_MS = 10_000
"""How long a broker may take to answer, unless [kafka] sets another time."""

POLL_TIMEOUT_S = 5.0
"""How long to wait for the next records; offsets that compaction has removed never come."""


def existing_topics(project: Project) -> set[str]:
    """The names of all topics. Raises SamplingFailed when no broker answers."""
    try:
        with Admin(project.bootstrap, config=_settings(project, "admin")) as admin:
            return set(admin.list_topics(include_internal=True))
    except ClientError as error:
        raise SamplingFailed(f"the broker at {project.bootstrap} does not answer: {error}") from error


def sample(project: Project, topics: Sequence[str], count: int = SAMPLED_RECORDS) -> list[Record]:
    """The last records of the topics, about `count` in all, ordered by topic, partition and offset."""
    with (
        _translating_errors(topics),
        Consumer(project.bootstrap, config=_settings(project, "consumer")) as consumer,
    ):
        partitions = _partitions(project, topics)
        each = max(1, count // max(1, len(partitions)))
        found = _read(consumer, _ranges(consumer, partitions, each))
    return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))


def newest(project: Project, topic: str, count: int) -> list[Record]:
    """The `count` newest records of a topic, the newest first: by timestamp, then by offset."""
    with (
        _translating_errors([topic]),
        Consumer(project.bootstrap, config=_settings(project, "consumer")) as consumer,
    ):
        found = _read(consumer, _ranges(consumer, _partitions(project, [topic]), count))
    return newest_of(found, count)


def newest_of(records: Iterable[Record], count: int) -> list[Record]:
    """The `count` newest of these records. Which ones does not depend on the order they are given in."""

    def age(record: Record) -> tuple[int, int, str, int]:
        return (-record.timestamp, -record.offset, record.topic, record.partition)

    return sorted(records, key=age)[:count]


def last_offsets(
    project: Project, topics: Sequence[str], count: int
) -> dict[TopicPartition, tuple[int, int]]:
    """The range of the last `count` offsets of each partition."""
    with (
        _translating_errors(topics),
        Consumer(project.bootstrap, config=_settings(project, "consumer")) as consumer,
    ):
        return _ranges(consumer, _partitions(project, topics), count)


@contextmanager
def _translating_errors(topics: Sequence[str]) -> Iterator[None]:
    """Raise the client's errors as SamplingFailed, with the names of the topics."""
    try:
        yield
    except ClientError as error:
        what = "does not exist" if isinstance(error, UnknownTopic) else "cannot be read"
        raise SamplingFailed(f"{', '.join(topics)} {what}: {error}") from error


def _partitions(project: Project, topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions. Asks the admin client: a consumer would wait for a missing topic to appear."""
    with Admin(project.bootstrap, config=_settings(project, "admin")) as admin:
        return [
            TopicPartition(topic, number)
            for topic in topics
            for number in range(len(admin.describe_topic(topic).partitions))
        ]


def _ranges(
    consumer: Consumer, partitions: list[TopicPartition], count: int
) -> dict[TopicPartition, tuple[int, int]]:
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return {
        partition: (max(starts[partition], ends[partition] - count), ends[partition])
        for partition in partitions
    }


def _read(consumer: Consumer, all_ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Record]:
    found: list[Record] = []
    ranges = {partition: (start, end) for partition, (start, end) in all_ranges.items() if start < end}
    consumer.assign(ranges)
    for partition, (start, _) in ranges.items():
        consumer.seek(partition, start)
    while any(consumer.position(partition) < end for partition, (_, end) in ranges.items()):
        records = consumer.poll(timeout=POLL_TIMEOUT_S)
        if not records:
            break
        found += [record for record in records if record.offset < ranges[_partition_of(record)][1]]
    return found


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _settings(project: Project, kind: str) -> dict[str, str]:
    settings = {"default.api.timeout.ms": str(ANSWER_TIMEOUT_MS), **project.client_settings(kind)}
    if kind == "consumer":
        settings["allow.auto.create.topics"] = "false"  # whoever looks must not change what is there
    return settings
