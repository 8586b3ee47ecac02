"""ConsumerGroupDescribe (key 69), versions 0 and 1.

Groups of the protocol of KIP-848 are not served yet: each group is answered with UNSUPPORTED_VERSION, as in a
Kafka whose feature group.version is off. Admin clients then ask again by DescribeGroups.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


@api(ApiKey.CONSUMER_GROUP_DESCRIBE)
def handle(
    broker: Broker, request: Request[ConsumerGroupDescribeRequest]
) -> Steps[ConsumerGroupDescribeResponse]:
    def refuse(group_id: str) -> DescribedGroup:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)

    group_ids = distinct(request.message.group_ids)
    return in_steps(ConsumerGroupDescribeResponse(groups=lazily(group_ids, refuse)))
