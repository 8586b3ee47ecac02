"""Heartbeat (key 12), versions 0 to 4.

Keeps a member's session, and tells it by REBALANCE_IN_PROGRESS to join again. Version 3 brings static
members.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


@api(ApiKey.HEARTBEAT)
def handle(broker: Broker, request: Request[HeartbeatRequest]) -> HeartbeatResponse:
    message = request.message
    try:
        code = broker.groups.heartbeat(
            message.group_id, message.member_id, message.group_instance_id, message.generation_id
        )
    except KafkaError as error:
        code = error.code
    return HeartbeatResponse(error_code=code)
