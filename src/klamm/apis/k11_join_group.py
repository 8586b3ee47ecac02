"""JoinGroup (key 11), versions 0 to 9.

Parked until the group's join phase is complete; only the leader is told who the members are. Version 0 has
one timeout for session and rebalance; 4 makes a new member join twice, with the id it is given; 5 brings
static members; 8 a reason, which is not used; 9 lets a static leader that comes back skip the assignment.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import LATER, Later, Request, api
from klamm.groups.coordinator import JoinRequest
from klamm.groups.events import JoinResult, Subscription
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k11_join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_FIRST_VERSION_WITH_REQUIRED_MEMBER_ID = 4
_FIRST_VERSION_WITH_PROTOCOL_TYPE = 7
_FIRST_VERSION_WITH_SKIPPING = 9

MOST_PROTOCOLS = 50
"""Names of ways to assign partitions: members have one to three. When a join phase completes, the group looks
at all names of all members in one go: a thousand members with this many take some ten milliseconds."""


@api(ApiKey.JOIN_GROUP)
def handle(broker: Broker, request: Request[JoinGroupRequest]) -> JoinGroupResponse | Later:
    version, reply = request.version, request.reply
    try:
        broker.groups.join(_join_request(request), lambda result: reply.complete(_response(result, version)))
    except KafkaError as error:
        return _response(JoinResult(error.code, request.message.member_id), version)
    return LATER


def _join_request(request: Request[JoinGroupRequest]) -> JoinRequest:
    message = request.message
    if len(message.protocols) > MOST_PROTOCOLS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{len(message.protocols)} protocols of one member are refused: {MOST_PROTOCOLS} is the most",
        )
    metadata_by_name = {protocol.name: bytes(protocol.metadata) for protocol in message.protocols}
    return JoinRequest(
        group_id=message.group_id,
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple(Subscription(name, metadata) for name, metadata in metadata_by_name.items()),
        requires_known_member_id=request.version >= _FIRST_VERSION_WITH_REQUIRED_MEMBER_ID,
        can_skip_assignment=request.version >= _FIRST_VERSION_WITH_SKIPPING,
    )


def _response(result: JoinResult, version: int) -> JoinGroupResponse:
    protocol_name = result.protocol_name
    if protocol_name is None and version < _FIRST_VERSION_WITH_PROTOCOL_TYPE:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
