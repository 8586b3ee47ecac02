"""LeaveGroup (key 13), versions 0 to 5.

Up to version 2 one member leaves and its error is the error of the whole; from 3 on many may, each with an
error of its own, and a static member may be removed by its name alone. The reason of version 5 is logged.
"""

from __future__ import annotations

import logging

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, in_steps, lazily, pieces_of, with_pauses
from klamm.groups.events import Leaver
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

_FIRST_VERSION_WITH_MANY = 3
MOST_AT_ONCE = 1_000
"""Members that leave without a pause."""

_LOGGER = logging.getLogger(__name__)


@api(ApiKey.LEAVE_GROUP)
async def handle(
    broker: Broker, request: Request[LeaveGroupRequest]
) -> LeaveGroupResponse | Steps[LeaveGroupResponse]:
    message = request.message
    names_many = request.version >= _FIRST_VERSION_WITH_MANY
    if names_many:
        reasons = {
            Leaver(each.member_id, each.group_instance_id): each.reason
            async for each in with_pauses(message.members)
        }
        leavers = list(reasons)
    else:
        leavers = [Leaver(message.member_id, None)]
    errors: list[ErrorCode] = []
    pauses = Pauses()
    try:
        for piece in [*pieces_of(leavers, MOST_AT_ONCE)] or [[]]:
            await pauses.pause()
            errors += await broker.groups.leave(message.group_id, piece)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not names_many:
        return LeaveGroupResponse(error_code=errors[0])

    def answer(outcome: tuple[Leaver, ErrorCode]) -> MemberResponse:
        leaver, error = outcome
        reason = reasons[leaver]
        if reason and error is ErrorCode.NONE:
            who = leaver.instance_id or leaver.member_id
            _LOGGER.info("%s leaves the group %s: %s", who, message.group_id, reason)
        return MemberResponse(
            member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error
        )

    outcomes = list(zip(leavers, errors, strict=True))
    return in_steps(LeaveGroupResponse(error_code=ErrorCode.NONE, members=lazily(outcomes, answer)))
