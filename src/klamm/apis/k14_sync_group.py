"""SyncGroup (key 14), versions 0 to 5.

Parked until the leader's assignment is in __consumer_offsets. Version 3 brings static members; from 5 on a
member must name the protocol that it believes was chosen.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import LATER, Later, Request, api
from klamm.groups.events import Sync, SyncResult
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


@api(ApiKey.SYNC_GROUP)
def handle(broker: Broker, request: Request[SyncGroupRequest]) -> SyncGroupResponse | Later:
    message, reply = request.message, request.reply
    if request.version >= _FIRST_VERSION_WITH_PROTOCOL and None in (
        message.protocol_type,
        message.protocol_name,
    ):
        return _response(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    sync = Sync(
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        generation=message.generation_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in message.assignments},
    )
    try:
        broker.groups.sync(message.group_id, sync, lambda result: reply.complete(_response(result)))
    except KafkaError as error:
        return _response(SyncResult(error.code))
    return LATER


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
