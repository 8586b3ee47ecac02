"""Groups: list, describe, delete, and remove members. Requests go to the coordinator of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from klamm.client.admin.calls import AdminCalls, Outcome
from klamm.client.admin.types import GroupDescription, GroupListing, GroupMember
from klamm.client.errors import BrokerError, ClientError, UnsupportedRequest
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.messages.consumer_protocol import decode_assignment, decode_subscription
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.k15_describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest
from klamm.protocol.messages.k42_delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.k69_consumer_group_describe import ConsumerGroupDescribeRequest, Member

_CONSUMERS = "consumer"
_DEAD = "Dead"


async def list_groups(
    calls: AdminCalls, states: Sequence[str], types: Sequence[str], timeout: float | None
) -> list[GroupListing]:
    what = "listing groups"

    async def ask(broker: int) -> Outcome[list[GroupListing]]:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = await calls.call(broker, request)
        if response.error_code != ErrorCode.NONE:
            return calls.failure(response.error_code, f"{what} of broker {broker}")
        return [
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type)
            for one in response.groups
        ]

    brokers = await calls.network.retrying(what, calls.limit(timeout), calls.brokers)
    found = await calls.ask_about(what, brokers, lambda pending: calls.ask_brokers(pending, ask), timeout)
    listings = {one.group: one for groups in found.values() for one in groups}
    return [listings[group] for group in sorted(listings)]


async def describe_groups(
    calls: AdminCalls, groups: Iterable[str], timeout: float | None
) -> dict[str, GroupDescription]:
    async def ask(broker: int, chosen: list[str]) -> dict[str, Outcome[GroupDescription]]:
        return await describe_groups_at(calls, broker, chosen)

    return await calls.ask_about(
        "describing groups", groups, lambda pending: calls.ask_coordinators(pending, ask), timeout
    )


async def describe_groups_at(
    calls: AdminCalls, broker: int, groups: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    """What a broker says of groups that it coordinates, of both protocols."""
    response = await calls.call(broker, DescribeGroupsRequest(groups=groups))
    outcomes = {one.group_id: _described(calls, one, broker) for one in response.groups}
    missing = [
        group
        for group, outcome in outcomes.items()
        if isinstance(outcome, BrokerError) and outcome.code == ErrorCode.GROUP_ID_NOT_FOUND
    ]
    if missing:
        outcomes |= await _of_the_new_protocol(calls, broker, missing)
    return outcomes


async def _of_the_new_protocol(
    calls: AdminCalls, broker: int, groups: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    """Those of the groups that have members of KIP-848's protocol: DescribeGroups does not know them."""
    try:
        response = await calls.call(broker, ConsumerGroupDescribeRequest(group_ids=groups))
    except UnsupportedRequest:
        return {}
    return {
        one.group_id: GroupDescription(
            one.group_id,
            one.group_state,
            _CONSUMERS,
            one.assignor_name,
            broker,
            tuple(_new_member(member) for member in one.members),
        )
        for one in response.groups
        if one.error_code == ErrorCode.NONE
    }


def _new_member(member: Member) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(member.subscribed_topic_names)),
        frozenset(
            TopicPartition(topic.topic_name, partition)
            for topic in member.assignment.topic_partitions
            for partition in topic.partitions
        ),
    )


def _described(calls: AdminCalls, group: DescribedGroup, broker: int) -> Outcome[GroupDescription]:
    code = group.error_code
    if code == ErrorCode.NONE and group.group_state == _DEAD:
        code = ErrorCode.GROUP_ID_NOT_FOUND  # how versions before 6 say it
    if code != ErrorCode.NONE:
        return calls.failure(code, f"describing group {group.group_id!r}", group.error_message)
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        broker,
        tuple(_member(one, group.protocol_type) for one in group.members),
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    topics: tuple[str, ...] = ()
    partitions: frozenset[TopicPartition] = frozenset()
    if protocol_type == _CONSUMERS:
        try:
            if member.member_metadata:
                topics = tuple(decode_subscription(member.member_metadata).topics)
            if member.member_assignment:
                partitions = frozenset(
                    TopicPartition(one.topic, partition)
                    for one in decode_assignment(member.member_assignment).assigned_partitions
                    for partition in one.partitions
                )
        except MalformedMessage:
            pass  # the member uses a format of its own, so its partitions are not known
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, topics, partitions
    )


async def delete_groups(calls: AdminCalls, groups: Sequence[str], timeout: float | None) -> None:
    answers_lost = False

    async def ask(broker: int, chosen: list[str]) -> dict[str, Outcome[str]]:
        nonlocal answers_lost
        try:
            response = await calls.call(broker, DeleteGroupsRequest(groups_names=chosen))
        except ClientError:
            answers_lost = True
            raise
        outcomes: dict[str, Outcome[str]] = {}
        for one in response.results:
            # An earlier attempt, whose answer was lost, may have deleted it.
            gone = one.error_code == ErrorCode.GROUP_ID_NOT_FOUND and answers_lost
            if one.error_code == ErrorCode.NONE or gone:
                outcomes[one.group_id] = one.group_id
            else:
                outcomes[one.group_id] = calls.failure(one.error_code, f"deleting group {one.group_id!r}")
        return outcomes

    await calls.ask_about(
        "deleting groups", groups, lambda pending: calls.ask_coordinators(pending, ask), timeout
    )


async def remove_members(
    calls: AdminCalls,
    group: str,
    member_ids: Sequence[str] | None,
    instance_ids: Sequence[str] | None,
    reason: str | None,
    timeout: float | None,
) -> None:
    if member_ids is None and instance_ids is None:
        described = (await describe_groups(calls, [group], timeout))[group]
        instance_ids = [one.instance_id for one in described.members if one.instance_id is not None]
        member_ids = [one.member_id for one in described.members if one.instance_id is None]
    identities = {
        one: MemberIdentity(member_id=one, group_instance_id=None, reason=reason) for one in member_ids or ()
    } | {
        one: MemberIdentity(member_id="", group_instance_id=one, reason=reason) for one in instance_ids or ()
    }

    async def ask(broker: int, pending: list[str]) -> dict[str, Outcome[str]]:
        request = LeaveGroupRequest(group_id=group, members=[identities[one] for one in pending])
        response = await calls.call(broker, request)
        what = f"removing members of group {group!r}"
        if response.error_code != ErrorCode.NONE:
            return {one: calls.failure(response.error_code, what) for one in pending}
        outcomes: dict[str, Outcome[str]] = {}
        for member in response.members:
            # A static member is identified by its instance id; its member id in the answer may be any.
            named = member.group_instance_id if member.group_instance_id in identities else member.member_id
            outcomes[named] = named
            if member.error_code != ErrorCode.NONE:
                outcomes[named] = calls.failure(member.error_code, f"{what}: {named!r}")
        return outcomes

    async def ask_coordinator(pending: list[str]) -> Mapping[str, Outcome[str]]:
        return await calls.ask_coordinator(group, pending, ask)

    await calls.ask_about(f"removing members of group {group!r}", identities, ask_coordinator, timeout)
