"""ApiVersions (key 18), versions 0 to 4.

Advertises, for every API that is served to clients, the range that Kafka 4.3 advertises, and no other API:
clients call what they see. A version that is too new is answered by the dispatcher in version 0. No features
are finalized: transaction.version and the like come with transactions. On the listener for brokers, and only
there, the APIs between brokers are advertised too.
"""

from __future__ import annotations

from functools import cache

from klamm.apis.broker import Broker
from klamm.apis.registry import HANDLERS, Request, api
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_FIRST_VERSION_WITH_SOFTWARE_NAME = 3


@api(ApiKey.API_VERSIONS)
def handle(broker: Broker, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    message = request.message
    if request.version >= _FIRST_VERSION_WITH_SOFTWARE_NAME and not (
        _is_valid_software_name(message.client_software_name)
        and _is_valid_software_name(message.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    is_broker = request.listener_name == broker.config.inter_broker_listener_name
    return ApiVersionsResponse(api_keys=_served_apis(is_broker))


@cache
def _served_apis(is_broker: bool) -> list[ApiVersion]:
    """What is told to a client, or to another broker."""
    return [
        ApiVersion(
            api_key=key,
            min_version=API_VERSIONS[key].min_version,
            max_version=API_VERSIONS[key].max_version,
        )
        for key in sorted(HANDLERS)
        if is_broker or not API_VERSIONS[key].is_inter_broker
    ]


def _is_valid_software_name(name: str) -> bool:
    """Letters, digits, dots and dashes, with a letter or digit at both ends (KIP-511)."""
    return (
        name != ""
        and name.isascii()
        and name[0].isalnum()
        and name[-1].isalnum()
        and all(character.isalnum() or character in ".-" for character in name)
    )
