"""FindCoordinator (key 10), versions 0 to 6.

The coordinator of a group is the leader of its partition of __consumer_offsets. The topic is made when it is
first needed. A group that is coordinated here is waited for until it is loaded; if that takes too long, the
answer is COORDINATOR_NOT_AVAILABLE, so that a broker that is named here can be asked at once.
Up to version 3 a request has one key, from 4 on many. On success the error message of versions 1 to 3 is
"NONE", as Kafka writes it.

Transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED until there are transactions, because
clients would repeat the request for ever on any code that can be retried. Share groups are not served: their
code is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, distinct, in_steps, lazily
from klamm.cluster.image import NO_LEADER, OFFSETS_TOPIC
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
        group_ids = distinct(message.coordinator_keys)
        locate = await _prepare(broker, request, group_ids)
        return in_steps(FindCoordinatorResponse(coordinators=lazily(range(len(group_ids)), locate)))
    found = (await _prepare(broker, request, [message.key]))(0)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode(found.error_code).name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _prepare(
    broker: Broker, request: Request[FindCoordinatorRequest], group_ids: list[str]
) -> Callable[[int], Coordinator]:
    """Wait until coordinators can be told, and return the function that tells that of `group_ids[index]`."""
    partitions: list[int] = []
    try:
        _check_key_type(request.message.key_type)
        await _make_offsets_topic(broker)
        own: set[int] = set()
        pauses = Pauses()
        for group_id in group_ids:
            await pauses.pause()
            partition = broker.groups.partition_for(group_id)
            partitions.append(partition)
            if partition not in own and _leader(broker, partition) == broker.node_id:
                own.add(partition)
    except KafkaError as error:
        # Not the error itself: its traceback would hold this frame, and the frame the function.
        code, reason = error.code, error.message
        return lambda index: _failed(group_ids[index], code, reason)
    await broker.groups.wait_until_loaded(own)
    return lambda index: _locate(broker, request.listener_name, group_ids[index], partitions[index])


def _failed(group_id: str, code: ErrorCode, reason: str | None) -> Coordinator:
    return Coordinator(key=group_id, node_id=-1, host="", port=-1, error_code=code, error_message=reason)


def _check_key_type(key_type: int) -> None:
    if key_type == _TRANSACTION_KEY:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker has no transactions; produce without a transactional.id",
        )
    if key_type != _GROUP_KEY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there are no coordinators of key type {key_type}")


async def _make_offsets_topic(broker: Broker) -> None:
    try:
        await broker.cluster.ensure_offsets_topic()
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} cannot be made: {error}"
        ) from error


def _leader(broker: Broker, partition: int) -> int:
    topic = broker.cluster.image.topics.get(OFFSETS_TOPIC)
    # The topic may have been deleted, and made again with fewer partitions, since the partition was computed.
    if topic is None or partition >= len(topic.partitions):
        return NO_LEADER
    leader = topic.partitions[partition].leader
    if leader == broker.node_id and broker.partitions.is_offline(OFFSETS_TOPIC, partition):
        return NO_LEADER
    return leader


def _locate(broker: Broker, listener_name: str, group_id: str, partition: int) -> Coordinator:
    leader = _leader(broker, partition)
    node = broker.cluster.image.brokers.get(leader)
    endpoint = None if node is None else node.endpoints.get(listener_name)
    if endpoint is None or (leader == broker.node_id and not broker.groups.is_loaded(partition)):
        reason = "cannot be reached" if endpoint is None else "is still loading the group"
        return _failed(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator {reason}; try again")
    return Coordinator(
        key=group_id, node_id=leader, host=endpoint.host, port=endpoint.port, error_code=ErrorCode.NONE
    )
