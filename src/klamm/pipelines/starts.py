"""Turns a starting point, as users write it, into offsets, with the help of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from klamm.client.admin.types import OffsetSpec
from klamm.client.errors import BatchFailed, BrokerError, ClientError
from klamm.client.plain.admin import Admin
from klamm.client.results import TopicPartition
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.positions import Position, completed, is_position
from klamm.pipelines.project import Project

Point: TypeAlias = str | int | datetime | Mapping[str, Mapping[str, int]]
"""earliest, latest, a time, one offset for every partition, or offsets by topic and partition."""

FORMS = (
    "earliest, latest, a time such as 2026-01-31T12:00:00Z, an offset, or offsets as JSON "
    '({"orders": {"0": 17}})'
)


class StartUnknown(PipelineError):
    """A starting point is not valid, or no broker answers."""


def parse_point(text: str) -> Point:
    """Parse a starting point from a command line or a decorator."""
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    if word.isdigit():
        return int(word)
    if word.startswith("{"):
        try:
            value = json.loads(word)
        except ValueError:
            value = None
        if is_position(value):
            return value
    else:
        try:
            time = datetime.fromisoformat(word.removeprefix("@"))
        except ValueError:
            pass
        else:
            return time if time.tzinfo else time.replace(tzinfo=UTC)
    raise StartUnknown(f"{text!r} is not a valid starting point", advice=f"Use {FORMS}")


def resolve(project: Project, topics: Iterable[str], point: Point) -> Position:
    """The offset of a starting point in every partition of these topics."""
    if isinstance(point, str):
        point = parse_point(point)
    try:
        with Admin(project.bootstrap, config=project.client_settings("admin")) as admin:
            partitions = {
                name: range(len(topic.partitions))
                for name, topic in admin.describe_topics(sorted(set(topics))).items()
            }
            return _found(admin, partitions, point)
    except BatchFailed as error:
        first = next(iter(error.errors.values()))
        raise _unknown(project, topics, first) from error
    except ClientError as error:
        raise _unknown(project, topics, error) from error


def _found(admin: Admin, partitions: Mapping[str, range], point: Point) -> Position:
    if isinstance(point, Mapping):
        unknown = sorted(set(point) - set(partitions))
        if unknown:
            raise StartUnknown(
                f"offsets are given for {', '.join(unknown)}, which the pipeline does not read",
                advice=f"It reads {', '.join(sorted(partitions))}",
            )
        return completed({topic: dict(offsets) for topic, offsets in point.items()}, partitions)
    asked = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    at: OffsetSpec = point if isinstance(point, datetime) else ("latest" if point == "latest" else "earliest")
    found = admin.list_offsets(dict.fromkeys(asked, at))
    ends = admin.list_offsets(dict.fromkeys(asked, "latest"))
    position: Position = {}
    for partition in asked:
        # If no record is that new, begin at the end.
        offset = found[partition] or ends[partition]
        end = ends[partition]
        assert offset is not None and end is not None
        # A single offset is for all partitions, and may lie outside of some.
        number = min(max(point, offset.offset), end.offset) if isinstance(point, int) else offset.offset
        position.setdefault(partition.topic, {})[str(partition.partition)] = number
    return position


def _unknown(project: Project, topics: Iterable[str], error: Exception) -> StartUnknown:
    advice = "" if isinstance(error, BrokerError) else "Is the broker running?"
    return StartUnknown(
        f"the offsets of {', '.join(sorted(set(topics)))} cannot be read from {project.bootstrap}: {error}",
        advice=advice,
    )
