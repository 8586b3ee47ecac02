"""ShareGroupHeartbeat (key 76), version 1.

Share groups are not served yet. The answer is UNSUPPORTED_VERSION, as in a Kafka whose feature share.version
is off: a share consumer tells its user and stops.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_SHARE_GROUPS
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k76_share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


@api(ApiKey.SHARE_GROUP_HEARTBEAT)
def handle(broker: Broker, request: Request[ShareGroupHeartbeatRequest]) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_SHARE_GROUPS
    )
