"""Offsets: those that groups have committed, and the first and last offsets of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from klamm.client.admin.calls import AdminCalls, Outcome, Outcomes
from klamm.client.admin.types import OffsetSpec
from klamm.client.arguments import by_topic, time_ms
from klamm.client.errors import BatchFailed, ClientMisused, GroupError, UnknownTopic
from klamm.client.network.network import Versioned
from klamm.client.results import CommittedOffset, OffsetAndTime, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from klamm.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

SPECIAL_TIMES = {
    "latest": -1,
    "earliest": -2,
    "max_timestamp": -3,
    "earliest_local": -4,
    "latest_tiered": -5,
    "earliest_pending_upload": -6,
}
_READ_COMMITTED = 1
_CONSUMER = -1

# The newest versions with topic names. Later ones have topic ids, and a deleted topic of a group has none.
_LAST_COMMIT_BY_NAME = 9
_LAST_FETCH_BY_NAME = 9
_FIRST_FETCH_OF_MANY_GROUPS = 8

MOST_GROUPS_AT_ONCE = 500
"""The most groups whose offsets one request asks for: an answer has all their partitions."""


# ---- of groups


async def list_group_offsets(
    calls: AdminCalls, group: str, partitions: Sequence[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, CommittedOffset]:
    what = f"listing the offsets of group {group!r}"
    return await calls.ask_about_one(
        what, group, lambda pending: _ask_offsets(calls, pending, partitions), timeout
    )


async def list_groups_offsets(
    calls: AdminCalls, groups: Sequence[str], timeout: float | None
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    return await calls.ask_about(
        "listing the offsets of groups", groups, lambda pending: _ask_offsets(calls, pending, None), timeout
    )


async def _ask_offsets(
    calls: AdminCalls, groups: list[str], partitions: Sequence[TopicPartition] | None
) -> Outcomes[str, dict[TopicPartition, CommittedOffset]]:
    """Ask each coordinator about its groups: some hundreds at once, or one by one if the broker is old."""

    async def ask(
        broker: int, chosen: list[str]
    ) -> dict[str, Outcome[dict[TopicPartition, CommittedOffset]]]:
        async def call(request: Versioned, max_version: int) -> OffsetFetchResponse:
            response: OffsetFetchResponse = await calls.call(broker, request, max_version=max_version)
            return response

        answers = await fetch_of_groups(call, chosen, partitions, MOST_GROUPS_AT_ONCE)
        return {group: _offsets(calls, group, answers.get(group)) for group in chosen}

    return await calls.ask_coordinators(groups, ask)


async def fetch_of_groups(
    call: Callable[[Versioned, int], Awaitable[OffsetFetchResponse]],
    groups: Sequence[str],
    partitions: Sequence[TopicPartition] | None,
    most_at_once: int,
) -> dict[str, OffsetFetchResponse | OffsetFetchResponseGroup]:
    """What a coordinator answers about each of its groups. `call` asks that broker with a request of at most
    a version; a request names `most_at_once` groups, or one if the broker is old."""
    answers: dict[str, OffsetFetchResponse | OffsetFetchResponseGroup] = {}
    place = 0
    while place < len(groups):
        asked = list(groups[place : place + most_at_once])
        try:
            response = await call(_fetch(asked, partitions), _LAST_FETCH_BY_NAME)
        except _OnlyOneGroup:
            most_at_once = 1
            continue
        if response.groups:
            answers.update({one.group_id: one for one in response.groups})
        else:
            answers[asked[0]] = response
        place += len(asked)
    return answers


def _offsets(
    calls: AdminCalls, group: str, answer: OffsetFetchResponse | OffsetFetchResponseGroup | None
) -> Outcome[dict[TopicPartition, CommittedOffset]]:
    what = f"listing the offsets of group {group!r}"
    if answer is None:
        return calls.failure(ErrorCode.UNKNOWN_SERVER_ERROR, what, "the answer does not name it")
    if answer.error_code != ErrorCode.NONE:
        return calls.failure(answer.error_code, what)
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            if one.error_code != ErrorCode.NONE:
                return calls.failure(one.error_code, f"{what}: {partition}")
            if one.committed_offset >= 0:
                found[partition] = CommittedOffset(
                    one.committed_offset, one.metadata or "", one.committed_leader_epoch
                )
    return dict(sorted(found.items()))


class _OnlyOneGroup(Exception):
    """The broker is so old that a request can only be about one group."""


def _fetch(groups: list[str], partitions: Sequence[TopicPartition] | None) -> Versioned:
    grouped = None if partitions is None else by_topic(partitions)

    def build(version: int) -> OffsetFetchRequest:
        if version < _FIRST_FETCH_OF_MANY_GROUPS:
            if len(groups) > 1:
                raise _OnlyOneGroup
            topics = None
            if grouped is not None:
                topics = [
                    OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                    for name, numbers in grouped.items()
                ]
            return OffsetFetchRequest(group_id=groups[0], topics=topics)
        wanted = None
        if grouped is not None:
            wanted = [
                OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in grouped.items()
            ]
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted) for group in groups]
        )

    return Versioned(OffsetFetchRequest, build)


async def alter_group_offsets(
    calls: AdminCalls,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    timeout: float | None,
) -> None:
    what = f"altering the offsets of group {group!r}"

    async def ask(broker: int, pending: list[TopicPartition]) -> dict[TopicPartition, Outcome[bool]]:
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[_commit(number, offsets[TopicPartition(name, number)]) for number in numbers],
            )
            for name, numbers in by_topic(pending).items()
        ]
        request = OffsetCommitRequest(group_id=group, topics=topics)
        response = await calls.call(broker, request, max_version=_LAST_COMMIT_BY_NAME)
        return {
            TopicPartition(topic.name, one.partition_index): _committed(calls, one.error_code, what)
            for topic in response.topics
            for one in topic.partitions
        }

    async def ask_coordinator(
        pending: list[TopicPartition],
    ) -> Mapping[TopicPartition, Outcome[bool]]:
        return await calls.ask_coordinator(group, pending, ask)

    await calls.ask_about(what, offsets, ask_coordinator, timeout)


def _commit(partition: int, offset: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def _committed(calls: AdminCalls, code: int, what: str) -> Outcome[bool]:
    if code == ErrorCode.NONE:
        return True
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        # For a commit that does not come from a member this code means:
        return GroupError(
            f"{what} failed with {ErrorCode(code).name}: the group has members",
            code=ErrorCode(code),
            advice="Stop its members first",
        )
    return calls.failure(code, what)


async def delete_group_offsets(
    calls: AdminCalls, group: str, partitions: Sequence[TopicPartition], timeout: float | None
) -> None:
    what = f"deleting the offsets of group {group!r}"

    async def ask(broker: int, pending: list[TopicPartition]) -> dict[TopicPartition, Outcome[bool]]:
        topics = [
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
            )
            for name, numbers in by_topic(pending).items()
        ]
        response = await calls.call(broker, OffsetDeleteRequest(group_id=group, topics=topics))
        if response.error_code != ErrorCode.NONE:
            return {one: calls.failure(response.error_code, what) for one in pending}
        outcomes: dict[TopicPartition, Outcome[bool]] = {}
        for topic in response.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                outcomes[partition] = True
                if one.error_code != ErrorCode.NONE:
                    outcomes[partition] = calls.failure(one.error_code, f"{what}: {partition}")
        return outcomes

    async def ask_coordinator(
        pending: list[TopicPartition],
    ) -> Mapping[TopicPartition, Outcome[bool]]:
        return await calls.ask_coordinator(group, pending, ask)

    await calls.ask_about(what, partitions, ask_coordinator, timeout)


async def group_lag(
    calls: AdminCalls, group: str, partitions: Sequence[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, int]:
    committed = await list_group_offsets(calls, group, partitions, timeout)
    wanted: dict[TopicPartition, OffsetSpec] = dict.fromkeys(committed, "latest")
    try:
        ends = await list_offsets(calls, wanted, False, timeout)
    except BatchFailed as failed:
        # Committed offsets outlive their topic; a deleted topic has no lag.
        if not all(isinstance(error, UnknownTopic) for error in failed.errors.values()):
            raise
        ends = failed.results
    return {
        partition: max(0, end.offset - committed[partition].offset)
        for partition, end in ends.items()
        if end is not None
    }


# ---- of partitions


async def list_offsets(
    calls: AdminCalls,
    wanted: Mapping[TopicPartition, OffsetSpec],
    read_committed: bool,
    timeout: float | None,
) -> dict[TopicPartition, OffsetAndTime | None]:
    times = {partition: _wire_time(spec) for partition, spec in wanted.items()}

    async def ask(broker: int, pending: list[TopicPartition]) -> dict[TopicPartition, Outcome[OffsetAndTime]]:
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=_READ_COMMITTED if read_committed else 0,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=number, timestamp=times[TopicPartition(name, number)]
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(pending).items()
            ],
            timeout_ms=round(calls.limit(timeout) * 1000),
        )
        outcomes: dict[TopicPartition, Outcome[OffsetAndTime]] = {}
        for topic in (await calls.call(broker, request)).topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                outcomes[partition] = OffsetAndTime(one.offset, one.timestamp, one.leader_epoch)
                if one.error_code != ErrorCode.NONE:
                    what = f"listing offsets of {partition} on broker {broker}"
                    outcomes[partition] = calls.failure(one.error_code, what)
        return outcomes

    found, failed = await calls.ask_about_partly(
        "listing offsets", times, lambda pending: calls.ask_leaders(pending, ask), timeout
    )
    results = {partition: one if one.offset >= 0 else None for partition, one in found.items()}
    if failed is not None:
        failed.results = dict(results)
        raise failed
    return results


def _wire_time(spec: OffsetSpec) -> int:
    if not isinstance(spec, str):
        return time_ms(spec)
    if spec not in SPECIAL_TIMES:
        raise ClientMisused(
            f"{spec!r} is not a valid offset to list",
            advice=f"Give one of {', '.join(SPECIAL_TIMES)}, milliseconds, or a datetime",
        )
    return SPECIAL_TIMES[spec]
