"""StreamsGroupHeartbeat (key 88), version 0.

Streams groups are not served. The answer is UNSUPPORTED_VERSION, as in a Kafka whose feature streams.version
is off: Kafka Streams with group.protocol=streams tells its user and stops.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_STREAMS_GROUPS
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)


@api(ApiKey.STREAMS_GROUP_HEARTBEAT)
def handle(broker: Broker, request: Request[StreamsGroupHeartbeatRequest]) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_STREAMS_GROUPS
    )
