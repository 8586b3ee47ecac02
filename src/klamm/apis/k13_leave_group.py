"""LeaveGroup (key 13), versions 0 to 5.

Up to version 2 one member leaves and its error is the error of the whole; from 3 on many may, each with an
error of its own, and a static member may be removed by its name alone. The reason of version 5 is for people.
"""

from __future__ import annotations

import logging

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.groups.events import Leaver
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_FIRST_VERSION_WITH_MANY = 3
_LOGGER = logging.getLogger(__name__)


@api(ApiKey.LEAVE_GROUP)
async def handle(broker: Broker, request: Request[LeaveGroupRequest]) -> LeaveGroupResponse:
    message = request.message
    names_many = request.version >= _FIRST_VERSION_WITH_MANY
    if names_many:
        leavers = [Leaver(member.member_id, member.group_instance_id) for member in message.members]
        for member in message.members:
            if member.reason:
                who = member.group_instance_id or member.member_id
                _LOGGER.info("%s leaves the group %s: %s", who, message.group_id, member.reason)
    else:
        leavers = [Leaver(message.member_id, None)]
    try:
        errors = await broker.groups.leave(message.group_id, leavers)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not names_many:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        ],
    )
