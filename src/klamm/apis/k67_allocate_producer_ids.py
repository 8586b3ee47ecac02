"""AllocateProducerIds (key 67), version 0, between brokers only.

A broker asks the controller for a block of producer ids, which no broker has been given before.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


@api(ApiKey.ALLOCATE_PRODUCER_IDS)
async def handle(broker: Broker, request: Request[AllocateProducerIdsRequest]) -> AllocateProducerIdsResponse:
    message = request.message
    try:
        block = await broker.cluster.allocate_producer_ids(message.broker_id, message.broker_epoch)
    except KafkaError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
