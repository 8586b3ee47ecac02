"""IncrementalAlterConfigs (key 44), versions 0 and 1.

SET, DELETE, APPEND and SUBTRACT single keys of topics, of this broker, of all brokers (the empty name) and of
groups. Each resource is altered whole or answered with its own error: INVALID_CONFIG, or INVALID_REQUEST for
a broker, whose keys must be known and changeable while it runs. What is altered holds at once and survives a
restart. Unlike Kafka, which stores any name for a broker, unknown keys are refused.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.config_resources import alter_each
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
from klamm.config.alterations import Alteration, AlterOperation
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def handle(
    broker: Broker, request: Request[IncrementalAlterConfigsRequest]
) -> Steps[IncrementalAlterConfigsResponse]:
    message = request.message

    async def alter(resource: AlterConfigsResource) -> None:
        await broker.cluster.alter_config(
            resource.resource_type,
            resource.resource_name,
            [_alteration(config) for config in resource.configs],
            validate_only=message.validate_only,
        )

    answers = await alter_each(message.resources, alter, AlterConfigsResourceResponse)
    return in_steps(IncrementalAlterConfigsResponse(responses=answers))


def _alteration(config: AlterableConfig) -> Alteration:
    try:
        operation = AlterOperation(config.config_operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{config.config_operation} is not a valid operation on {config.name}: expected 0 (SET), "
            "1 (DELETE), 2 (APPEND) or 3 (SUBTRACT)",
        ) from None
    return Alteration(config.name, operation, config.value)
