"""The list of groups, and one group: its partitions, its members, its lag over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klamm.client.results import TopicPartition
from klamm.console.views.paging import Page, Query, page_of
from klamm.console.views.rates import rate, spark
from klamm.console.watching import history as series
from klamm.console.watching.history import History, Point
from klamm.console.watching.pace import Pace, Trend
from klamm.console.watching.picture import GroupState, Picture

BEHIND = "behind"
ACTIVE = "active"
FILTERS = (ACTIVE, BEHIND)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list."""

    name: str
    state: str
    type: str
    members: int | None
    topics: Sequence[str]
    partitions: int
    lag: int | None
    recent_lag: list[float | None]
    pace: Pace
    out_per_s: float | None
    coordinator: int


def group_row(history: History, group: GroupState) -> GroupRow:
    return GroupRow(
        group.name,
        group.state,
        group.type,
        None if group.members is None else len(group.members),
        group.topics,
        len(group.offsets),
        group.lag,
        spark(history, series.lag(group.name)),
        group.pace,
        rate(history, series.consumed(group.name)),
        group.coordinator,
    )


def is_behind(group: GroupState) -> bool:
    return group.pace.trend is Trend.FALLING_BEHIND


def groups(picture: Picture, history: History, query: Query) -> Page[GroupRow]:
    chosen = [
        group
        for group in picture.groups.values()
        if (ACTIVE not in query.filters or group.state != "Empty")
        and (BEHIND not in query.filters or is_behind(group))
    ]
    found = page_of(
        chosen,
        query,
        name=lambda group: group.name,
        columns={
            "name": lambda group: group.name,
            "state": lambda group: group.state,
            "members": lambda group: None if group.members is None else len(group.members),
            "topics": lambda group: len(group.topics),
            "lag": lambda group: group.lag,
            "rate": lambda group: rate(history, series.consumed(group.name)),
            "pace": lambda group: group.pace.per_s,
        },
    )
    rows = [group_row(history, group) for group in found.rows]
    return Page(rows, found.page, found.pages, found.total, found.of)


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A partition that a group reads. `member` is the client of the member that owns the partition."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    member_id: str | None
    is_stuck: bool
    """It has lag, and no member reads it although the group has members."""


def offsets(picture: Picture, group: GroupState, query: Query) -> Page[OffsetRow]:
    """One page of a group's partitions: those with a committed offset, and those that a member owns."""
    owners = {at: member for member in group.members or () for at in member.partitions}
    rows = []
    for at in sorted({*group.offsets, *owners}):
        committed, end = group.offsets.get(at), picture.ends.get(at)
        lag = max(0, end - committed) if committed is not None and end is not None else None
        owner = owners.get(at)
        rows.append(
            OffsetRow(
                at.topic,
                at.partition,
                committed,
                end,
                lag,
                owner.client_id if owner else None,
                owner.member_id if owner else None,
                bool(lag) and bool(group.members) and owner is None,
            )
        )
    return page_of(
        rows,
        query,
        name=lambda row: f"{row.topic} {row.partition:08d}",
        columns={
            "topic": lambda row: (row.topic, row.partition),
            "partition": lambda row: row.partition,
            "committed": lambda row: row.committed,
            "end": lambda row: row.end,
            "lag": lambda row: row.lag,
            "member": lambda row: row.member,
        },
    )


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group, what it owns, and how far that is behind."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]
    lag: int


def members(picture: Picture, group: GroupState) -> list[MemberRow]:
    rows = []
    for member in group.members or ():
        lag = sum(
            max(0, picture.ends[at] - group.offsets[at])
            for at in member.partitions
            if at in picture.ends and at in group.offsets
        )
        owned = sorted(member.partitions)
        rows.append(
            MemberRow(
                member.member_id, member.instance_id, member.client_id, member.host.lstrip("/"), owned, lag
            )
        )
    return sorted(rows, key=lambda row: (row.client_id, row.member_id))


def lag_points(picture: Picture, history: History, group: str, range_ms: int) -> list[Point]:
    return history.points(series.lag(group), picture.taken_ms, range_ms)
