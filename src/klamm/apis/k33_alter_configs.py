"""AlterConfigs (key 33), versions 0 to 2: the older way, which replaces all settings of a resource.

What the request does not name goes back to its default. Topics, this broker, all brokers (the empty name) and
groups; each resource is altered whole or answered with its own error.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.config_resources import alter_each
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@api(ApiKey.ALTER_CONFIGS)
async def handle(broker: Broker, request: Request[AlterConfigsRequest]) -> Steps[AlterConfigsResponse]:
    message = request.message

    async def alter(resource: AlterConfigsResource) -> None:
        await broker.cluster.replace_config(
            resource.resource_type,
            resource.resource_name,
            [(config.name, config.value) for config in resource.configs],
            validate_only=message.validate_only,
        )

    answers = await alter_each(message.resources, alter, AlterConfigsResourceResponse)
    return in_steps(AlterConfigsResponse(responses=answers))
