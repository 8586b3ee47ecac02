"""StreamsGroupDescribe (key 89), version 0.

Streams groups are not served: each group is answered with UNSUPPORTED_VERSION, as in a Kafka whose feature
streams.version is off.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, distinct, in_steps, lazily
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k89_streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)


@api(ApiKey.STREAMS_GROUP_DESCRIBE)
def handle(
    broker: Broker, request: Request[StreamsGroupDescribeRequest]
) -> Steps[StreamsGroupDescribeResponse]:
    def refuse(group_id: str) -> DescribedGroup:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)

    group_ids = distinct(request.message.group_ids)
    return in_steps(StreamsGroupDescribeResponse(groups=lazily(group_ids, refuse)))
