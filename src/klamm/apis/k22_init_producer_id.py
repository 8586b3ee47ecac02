"""InitProducerId (key 22), versions 0 to 5.

Gives an idempotent producer an id that no producer of the cluster had before, and epoch 0. A transactional
id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED until transactions exist: clients retry the retriable
codes for ever, and this one tells their user at once. While no controller gives this broker a block of ids,
the code is COORDINATOR_LOAD_IN_PROGRESS, as in Kafka.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@api(ApiKey.INIT_PRODUCER_ID)
async def handle(broker: Broker, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    message = request.message
    if message.transactional_id is not None:
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if message.producer_epoch != -1 and message.producer_id == -1:
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = await broker.producer_ids.next()
    except KafkaError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
