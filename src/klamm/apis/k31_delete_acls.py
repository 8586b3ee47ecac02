"""DeleteAcls (key 31), versions 1 to 3.

There is no access control yet: each filter is answered with SECURITY_DISABLED, as in a Kafka without an
authorizer.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
from klamm.apis.switched_off import NO_AUTHORIZER
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k31_delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@api(ApiKey.DELETE_ACLS)
def handle(broker: Broker, request: Request[DeleteAclsRequest]) -> Steps[DeleteAclsResponse]:
    refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return in_steps(DeleteAclsResponse(filter_results=[refused] * len(request.message.filters)))
