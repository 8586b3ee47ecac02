"""DescribeShareGroupOffsets (key 90), versions 0 and 1.

Share groups are not served yet: each group is answered with UNSUPPORTED_VERSION, as in a Kafka whose feature
share.version is off.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)


@api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
def handle(
    broker: Broker, request: Request[DescribeShareGroupOffsetsRequest]
) -> Steps[DescribeShareGroupOffsetsResponse]:
    def refuse(group_id: str) -> DescribeShareGroupOffsetsResponseGroup:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION
        )

    group_ids = distinct([group.group_id for group in request.message.groups])
    return in_steps(DescribeShareGroupOffsetsResponse(groups=lazily(group_ids, refuse)))
