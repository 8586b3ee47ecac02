"""DescribeAcls (key 29), versions 1 to 3.

There is no access control yet: SECURITY_DISABLED, as in a Kafka without an authorizer.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_AUTHORIZER
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k29_describe_acls import DescribeAclsRequest, DescribeAclsResponse


@api(ApiKey.DESCRIBE_ACLS)
def handle(broker: Broker, request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
