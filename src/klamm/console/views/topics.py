"""The list of topics, and one topic: its partitions and its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klamm.client.results import TopicPartition
from klamm.console.views.paging import Page, Query, page_of
from klamm.console.views.rates import rate, spark
from klamm.console.watching import history as series
from klamm.console.watching.history import History
from klamm.console.watching.pace import Pace
from klamm.console.watching.picture import Picture, TopicState, is_under_replicated

INTERNAL = "internal"
UNHEALTHY = "unhealthy"
FILTERS = (INTERNAL, UNHEALTHY)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list. `in_per_s` are records; `recent` are its latest values."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    records: int | None
    size_bytes: int | None
    in_per_s: float | None
    recent: list[float | None]
    lag: int | None
    groups: int
    offline: int
    under_replicated: int


def topic_row(picture: Picture, history: History, topic: TopicState) -> TopicRow:
    return TopicRow(
        topic.name,
        topic.is_internal,
        topic.partitions,
        topic.replicas,
        topic.records,
        topic.size_bytes,
        rate(history, series.produced(topic.name)),
        spark(history, series.produced(topic.name)),
        topic.lag,
        len(picture.consumers.get(topic.name, ())),
        topic.offline,
        topic.under_replicated,
    )


def topics(picture: Picture, history: History, query: Query) -> Page[TopicRow]:
    """One page of the list. Internal topics only with the filter `internal`."""
    chosen = [
        topic
        for topic in picture.topics.values()
        if (INTERNAL in query.filters or not topic.is_internal)
        and (UNHEALTHY not in query.filters or topic.offline or topic.under_replicated)
    ]
    found = page_of(
        chosen,
        query,
        name=lambda topic: topic.name,
        columns={
            "name": lambda topic: topic.name,
            "partitions": lambda topic: topic.partitions,
            "replicas": lambda topic: topic.replicas,
            "records": lambda topic: topic.records,
            "size": lambda topic: topic.size_bytes,
            "rate": lambda topic: rate(history, series.produced(topic.name)),
            "lag": lambda topic: topic.lag,
            "groups": lambda topic: len(picture.consumers.get(topic.name, ())),
            "health": lambda topic: (topic.offline, topic.under_replicated),
        },
    )
    rows = [topic_row(picture, history, topic) for topic in found.rows]
    return Page(rows, found.page, found.pages, found.total, found.of)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a topic. `sizes_bytes` are by broker."""

    partition: int
    leader: int | None
    preferred_leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline_replicas: Sequence[int]
    first_offset: int | None
    end_offset: int | None
    records: int | None
    size_bytes: int | None

    @property
    def is_offline(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


def partitions(picture: Picture, topic: str, query: Query) -> Page[PartitionRow]:
    """One page of a topic's partitions. KeyError if there is no such topic."""
    chosen = [
        one
        for one in picture.descriptions[topic].partitions
        if UNHEALTHY not in query.filters or one.leader is None or is_under_replicated(one)
    ]
    rows = []
    for one in chosen:
        at = TopicPartition(topic, one.partition)
        first, end = picture.starts.get(at), picture.ends.get(at)
        sizes = picture.sizes.get(at)
        rows.append(
            PartitionRow(
                one.partition,
                one.leader,
                one.replicas[0] if one.replicas else None,
                one.leader_epoch,
                one.replicas,
                one.in_sync_replicas,
                one.offline_replicas,
                first,
                end,
                max(0, end - first) if first is not None and end is not None else None,
                sizes.get(one.leader if one.leader is not None else -1, max(sizes.values()))
                if sizes
                else None,
            )
        )
    return page_of(
        rows,
        query,
        name=lambda row: f"{row.partition:08d}",
        columns={
            "partition": lambda row: row.partition,
            "leader": lambda row: row.leader,
            "first": lambda row: row.first_offset,
            "end": lambda row: row.end_offset,
            "records": lambda row: row.records,
            "size": lambda row: row.size_bytes,
        },
    )


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A group that has committed offsets of a topic. `lag` is that of this topic alone."""

    group: str
    state: str
    members: int | None
    lag: int | None
    pace: Pace


def consumers(picture: Picture, topic: str) -> list[ConsumerRow]:
    """The groups of a topic, the one with the largest lag first."""
    rows = []
    for name in picture.consumers.get(topic, ()):
        group = picture.groups[name]
        lags = [
            max(0, picture.ends[at] - offset)
            for at, offset in group.offsets.items()
            if at.topic == topic and at in picture.ends
        ]
        members = None if group.members is None else len(group.members)
        rows.append(ConsumerRow(name, group.state, members, sum(lags) if lags else None, group.pace))
    return sorted(rows, key=lambda row: (-(row.lag or 0), row.group))
