"""DescribeGroups (key 15), versions 0 to 6.

What the members told each other is shown while the group is stable. An unknown group is "Dead",
without an error up to version 5, with GROUP_ID_NOT_FOUND from 6 on. Version 3 adds the operations the caller
may perform, which without access control are all of them; 4 brings static names.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.groups.coordinator import GroupDescription, MemberDescription
from klamm.groups.events import GroupState
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k15_describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_FIRST_VERSION_WITH_MESSAGE = 6
_ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe and alter configuration."""


@api(ApiKey.DESCRIBE_GROUPS)
def handle(broker: Broker, request: Request[DescribeGroupsRequest]) -> Steps[DescribeGroupsResponse]:
    def describe(group_id: str) -> DescribedGroup:
        group = _describe(broker, group_id, request.version)
        if request.message.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = _ALL_GROUP_OPERATIONS
        return group

    return in_steps(DescribeGroupsResponse(groups=lazily(distinct(request.message.groups), describe)))


def _describe(broker: Broker, group_id: str, version: int) -> DescribedGroup:
    try:
        description = broker.groups.describe(group_id)
    except KafkaError as error:
        return _refusal(group_id, "", error.code, error.message, version)
    if description is not None:
        return _response(description)
    dead = GroupState.DEAD.value
    if version < _FIRST_VERSION_WITH_MESSAGE:
        return DescribedGroup(error_code=ErrorCode.NONE, group_id=group_id, group_state=dead)
    sentence = f"there is no group {group_id!r}"
    return _refusal(group_id, dead, ErrorCode.GROUP_ID_NOT_FOUND, sentence, version)


def _refusal(
    group_id: str, state: str, code: ErrorCode, sentence: str | None, version: int
) -> DescribedGroup:
    has_message = version >= _FIRST_VERSION_WITH_MESSAGE
    return DescribedGroup(
        error_code=code,
        error_message=sentence if has_message else None,
        group_id=group_id,
        group_state=state,
    )


def _response(description: GroupDescription) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=description.group_id,
        group_state=description.state.value,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol_name,
        members=lazily(description.members, _member),
    )


def _member(member: MemberDescription) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )
