"""UpdateMetadata (key 6), version 8, between brokers only.

The controller says what has changed in the cluster, or, in a full request, what the cluster is. This broker
follows the settings; which roles it has is said by LeaderAndIsr.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.controller_requests import check_sender
from klamm.apis.registry import Request, api
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


@api(ApiKey.UPDATE_METADATA)
async def handle(broker: Broker, request: Request[UpdateMetadataRequest]) -> UpdateMetadataResponse:
    message = request.message
    try:
        check_sender(broker, message.controller_epoch, message.broker_epoch)
    except KafkaError as error:
        return UpdateMetadataResponse(error_code=error.code)
    await broker.cluster.update(message)
    return UpdateMetadataResponse()
