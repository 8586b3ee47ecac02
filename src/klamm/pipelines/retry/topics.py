"""Retry topics: through them redriven records come back to pipelines that cannot get them in any other way.

Each source of a pipeline has one, `<project>.<pipeline>.<source>.retry`, which the pipeline reads beside the
topics of the source, as soon as it exists. Its rows look like the original records
(`pyspark_klamm/retried.py`). Its place is part of the source's position, so all that holds for offsets of
topics holds for it.

A pipeline that begins for the first time begins at the end of a retry topic that is there already: its
records are for an earlier pipeline of that name. After that a retry topic that no position names is read from
its oldest record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from klamm.client.errors import BatchFailed, BrokerError, ClientError, UnknownTopic
from klamm.client.plain.admin import Admin
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.pipelines.definitions import Source, TableSource
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import EARLIEST_OFFSET, Position
from klamm.pipelines.project import Project

RETRY_PARTITION = "0"
"""Retried records go to this partition, in order. A retry topic needs no other."""

_VALID = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SUFFIX = ".retry"
_MOST_READABLE = 200
"""How much of a name that no topic can have stays readable. A hash tells it from others."""


class RetryTopicUnknown(PipelineError):
    """Brokers do not say whether a retry topic exists."""


def retry_topic(project: Project, pipeline: str, source: str) -> str:
    """The retry topic of a source of a pipeline."""
    name = f"{project.group_of(pipeline)}.{source}{_SUFFIX}"
    if _VALID.fullmatch(name):
        return name
    # Python's names may be longer than those of topics, and have other letters.
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", name.removesuffix(_SUFFIX))[:_MOST_READABLE]
    return f"{readable}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}{_SUFFIX}"


def topics_of(project: Project, pipeline: str, source: Source | TableSource) -> tuple[str, ...]:
    """All topics in the positions of a source: its own, and its retry topic."""
    if isinstance(source, TableSource):
        return source.topics
    return (*source.topics, retry_topic(project, pipeline, source.name))


def part_of(project: Project, pipeline: str, source: Source | TableSource, position: Position) -> Position:
    """The part of a position that is about the topics of a source."""
    return {topic: position[topic] for topic in topics_of(project, pipeline, source) if topic in position}


def with_retry_end(
    project: Project, pipeline: str, source: Source | TableSource, position: Position
) -> Position:
    """The position, for a first start: at the end of the retry topic, if there is one."""
    return _with(project, pipeline, source, position, "latest")


def with_retry(
    project: Project,
    pipeline: str,
    source: Source | TableSource,
    position: Position,
    known: Mapping[str, Mapping[str, int]],
) -> Position:
    """The position with the retry topic, if there is one, where `known` has it; else at its oldest record."""
    if isinstance(source, TableSource):
        return position
    topic = retry_topic(project, pipeline, source.name)
    there = _with(project, pipeline, source, {}, None).get(topic, {})
    places = {number: known.get(topic, {}).get(number, EARLIEST_OFFSET) for number in there}
    return {**position, topic: places} if places else position


def _with(
    project: Project, pipeline: str, source: Source | TableSource, position: Position, spec: str | None
) -> Position:
    if isinstance(source, TableSource):
        return position
    topic = retry_topic(project, pipeline, source.name)
    try:
        with Admin(project.bootstrap, config=project.client_settings("admin")) as admin:
            found = admin.describe_topics([topic])[topic]
            partitions = [TopicPartition(topic, each.partition) for each in found.partitions]
            if spec is None:
                return {**position, topic: {str(each.partition): EARLIEST_OFFSET for each in partitions}}
            ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
            places = {str(each.partition): end.offset for each, end in ends.items() if end is not None}
            return {**position, topic: places}
    except BatchFailed as failed:
        error: ClientError = failed.errors.get(topic, failed)
    except ClientError as caught:
        error = caught
    if isinstance(error, UnknownTopic) or error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return position
    raise RetryTopicUnknown(
        f"{project.bootstrap} does not say whether the retry topic {topic} exists: {error}",
        advice="" if isinstance(error, BrokerError) else "Is the broker running?",
        place=source.place,
    ) from error
