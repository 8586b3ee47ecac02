"""What members of groups ask a simulated broker: its real group coordinator answers.

An answer is a `GroupAnswer`; what a coordinator raises is its error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from klamm.groups.coordinator import GroupCoordinator, JoinRequest
from klamm.groups.events import Leaver, Sync
from klamm.groups.offsets import CommittedOffset
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.testing.simulation.network import Answer


class GroupAnswer(NamedTuple):
    error: ErrorCode
    result: Any = None


class Heartbeat(NamedTuple):
    group_id: str
    member_id: str
    generation: int


class SyncRequest(NamedTuple):
    group_id: str
    sync: Sync


class Commit(NamedTuple):
    group_id: str
    member_id: str
    generation: int
    offsets: dict[TopicPartition, CommittedOffset]


class FetchOffsets(NamedTuple):
    group_id: str
    places: tuple[TopicPartition, ...]


class Leave(NamedTuple):
    group_id: str
    member_id: str


GroupRequest = JoinRequest | SyncRequest | Heartbeat | Commit | FetchOffsets | Leave

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task of the broker."""

_NO_COORDINATOR = GroupAnswer(ErrorCode.NOT_COORDINATOR)


def answer_group_request(
    groups: GroupCoordinator | None, request: GroupRequest, answer: Answer, spawn: Spawn
) -> None:
    if groups is None:
        answer(_NO_COORDINATOR)
        return
    try:
        _dispatch(groups, request, answer, spawn)
    except KafkaError as error:
        answer(GroupAnswer(error.code))


def _dispatch(groups: GroupCoordinator, request: GroupRequest, answer: Answer, spawn: Spawn) -> None:
    match request:
        case JoinRequest():
            groups.join(request, lambda result: answer(GroupAnswer(result.error, result)))
        case SyncRequest(group_id, sync):
            groups.sync(group_id, sync, lambda result: answer(GroupAnswer(result.error, result)))
        case Heartbeat(group_id, member_id, generation):
            answer(GroupAnswer(groups.heartbeat(group_id, member_id, None, generation)))
        case FetchOffsets(group_id, places):
            table = groups.offsets_of(group_id)
            answer(GroupAnswer(ErrorCode.NONE, {place: table.get(*place) for place in places}))
        case Commit() | Leave():
            spawn(_written(groups, request, answer))


async def _written(groups: GroupCoordinator, request: Commit | Leave, answer: Answer) -> None:
    """Commits and leaves are answered when they are in the log."""
    try:
        if isinstance(request, Commit):
            await groups.commit(
                request.group_id, request.member_id, None, request.generation, request.offsets
            )
        else:
            await groups.leave(request.group_id, [Leaver(request.member_id, None)])
    except KafkaError as error:
        answer(GroupAnswer(error.code))
    else:
        answer(GroupAnswer(ErrorCode.NONE))
