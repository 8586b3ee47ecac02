"""AlterShareGroupOffsets (key 91), version 0.

Share groups are not served yet: UNSUPPORTED_VERSION, as in a Kafka whose feature share.version is off.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_SHARE_GROUPS
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)


@api(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
def handle(broker: Broker, request: Request[AlterShareGroupOffsetsRequest]) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_SHARE_GROUPS
    )
