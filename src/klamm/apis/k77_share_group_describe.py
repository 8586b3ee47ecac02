"""ShareGroupDescribe (key 77), version 1.

Share groups are not served yet: each group is answered with UNSUPPORTED_VERSION, as in a Kafka whose feature
share.version is off.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k77_share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


@api(ApiKey.SHARE_GROUP_DESCRIBE)
def handle(broker: Broker, request: Request[ShareGroupDescribeRequest]) -> Steps[ShareGroupDescribeResponse]:
    def refuse(group_id: str) -> DescribedGroup:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)

    group_ids = distinct(request.message.group_ids)
    return in_steps(ShareGroupDescribeResponse(groups=lazily(group_ids, refuse)))
