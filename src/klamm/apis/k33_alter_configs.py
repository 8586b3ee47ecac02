"""AlterConfigs (key 33), versions 0 to 2: the older way, which replaces all settings of a resource.

What the request does not name goes back to its default. Topics, this broker, all brokers (the empty name) and
groups; each resource is altered whole or answered with its own error.
"""

from __future__ import annotations

from collections import Counter

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@api(ApiKey.ALTER_CONFIGS)
async def handle(broker: Broker, request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    message = request.message
    times_named = Counter((each.resource_type, each.resource_name) for each in message.resources)
    responses = []
    for resource in message.resources:
        response = AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
            await broker.cluster.replace_config(
                resource.resource_type,
                resource.resource_name,
                [(config.name, config.value) for config in resource.configs],
                validate_only=message.validate_only,
            )
        except KafkaError as error:
            response.error_code = error.code
            response.error_message = error.message
        responses.append(response)
    return AlterConfigsResponse(responses=responses)
