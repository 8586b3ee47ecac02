"""CreateAcls (key 30), versions 1 to 3.

There is no access control yet: each entry is answered with SECURITY_DISABLED, as in a Kafka without an
authorizer.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
from klamm.apis.switched_off import NO_AUTHORIZER
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k30_create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


@api(ApiKey.CREATE_ACLS)
def handle(broker: Broker, request: Request[CreateAclsRequest]) -> Steps[CreateAclsResponse]:
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return in_steps(CreateAclsResponse(results=[refused] * len(request.message.creations)))
