"""ConsumerGroupHeartbeat (key 68), versions 0 and 1.

Groups of the protocol of KIP-848 are not served yet. The answer is UNSUPPORTED_VERSION, as in a Kafka whose
feature group.version is off: a consumer with group.protocol=consumer tells its user and stops. It would look
for a coordinator for ever if the key were not advertised.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_CONSUMER_GROUPS
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@api(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def handle(broker: Broker, request: Request[ConsumerGroupHeartbeatRequest]) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_CONSUMER_GROUPS
    )
