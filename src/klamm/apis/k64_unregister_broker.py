"""UnregisterBroker (key 64), version 0: forget a broker that will not come back.

Nobody waits any longer for it to delete the files of deleted topics. A broker that is alive is refused.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@api(ApiKey.UNREGISTER_BROKER)
async def handle(broker: Broker, request: Request[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    try:
        await broker.cluster.unregister_broker(request.message.broker_id)
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_message=None)
