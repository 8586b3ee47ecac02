"""FindCoordinator (key 10), versions 0 to 6.

The coordinator of a group is the leader of its partition of __consumer_offsets. The topic is made when it is
first needed, and where the group is coordinated here the answer waits a moment for it to be loaded.
Up to version 3 a request has one key, from 4 on many. On success the error message of versions 1 to 3 is
"NONE", as Kafka writes it. Transactional ids are refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED until there are transactions, because any code that can be retried
would make clients wait for ever; share groups are not served, which is INVALID_REQUEST.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, distinct, in_steps
from klamm.cluster.image import NO_LEADER, OFFSETS_TOPIC, Endpoint
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_FIRST_VERSION_WITH_MANY_KEYS = 4
_GROUP_KEY = 0
_TRANSACTION_KEY = 1


@api(ApiKey.FIND_COORDINATOR)
async def handle(
    broker: Broker, request: Request[FindCoordinatorRequest]
) -> FindCoordinatorResponse | Steps[FindCoordinatorResponse]:
    message = request.message
    if request.version >= _FIRST_VERSION_WITH_MANY_KEYS:
        pauses = Pauses()
        coordinators = []
        for key in distinct(message.coordinator_keys):
            await pauses.pause()
            coordinators.append(await _find(broker, request, key))
        return in_steps(FindCoordinatorResponse(coordinators=coordinators))
    found = await _find(broker, request, message.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode(found.error_code).name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find(broker: Broker, request: Request[FindCoordinatorRequest], key: str) -> Coordinator:
    try:
        _check_key_type(request.message.key_type)
        await broker.cluster.ensure_offsets_topic()
        await broker.groups.wait_until_loaded(key)
        node_id, endpoint = _locate(broker, request.listener_name, key)
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )
    return Coordinator(
        key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_code=ErrorCode.NONE
    )


def _check_key_type(key_type: int) -> None:
    if key_type == _TRANSACTION_KEY:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker has no transactions; produce without a transactional.id",
        )
    if key_type != _GROUP_KEY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there are no coordinators of key type {key_type}")


def _locate(broker: Broker, listener_name: str, group_id: str) -> tuple[int, Endpoint]:
    image = broker.cluster.image
    topic = image.topics.get(OFFSETS_TOPIC)
    leader = NO_LEADER
    if topic is not None:
        index = broker.groups.partition_for(group_id)
        if not broker.partitions.is_offline(OFFSETS_TOPIC, index):
            leader = topic.partitions[index].leader
    node = image.brokers.get(leader)
    endpoint = None if node is None else node.endpoints.get(listener_name)
    if endpoint is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's coordinator cannot be reached now; try again"
        )
    return leader, endpoint
