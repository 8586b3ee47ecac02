"""ShareFetch (key 78), versions 1 and 2.

Share groups are not served yet: UNSUPPORTED_VERSION, as in a Kafka whose feature share.version is off.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.switched_off import NO_SHARE_GROUPS
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k78_share_fetch import ShareFetchRequest, ShareFetchResponse


@api(ApiKey.SHARE_FETCH)
def handle(broker: Broker, request: Request[ShareFetchRequest]) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_SHARE_GROUPS)
