"""ControlledShutdown (key 7), version 3, between brokers only.

A broker that is about to stop asks the controller to move its leaders to other brokers and to take it out of
the ISRs. The answer names the partitions that no other replica can lead; the broker may ask again.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k07_controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)


@api(ApiKey.CONTROLLED_SHUTDOWN)
async def handle(broker: Broker, request: Request[ControlledShutdownRequest]) -> ControlledShutdownResponse:
    message = request.message
    try:
        remaining = await broker.cluster.shut_down_broker(message.broker_id, message.broker_epoch)
    except KafkaError as error:
        return ControlledShutdownResponse(error_code=error.code)
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=name, partition_index=index) for name, index in remaining
        ]
    )
