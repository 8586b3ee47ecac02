"""StopReplica (key 5), version 4, between brokers only.

The controller says which partitions have no replica on this broker any more. A replica of another topic that
has the same name by now stays as it is, and so does one of which this broker knows a later leader epoch; a
deleted topic is later than any epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.apis.broker import Broker
from klamm.apis.controller_requests import check_sender
from klamm.apis.registry import Request, api
from klamm.apis.steps import with_pauses
from klamm.cluster.announcing import EPOCH_OF_DELETED
from klamm.cluster.fencing import check_leader_epoch
from klamm.cluster.image import OFFSETS_TOPIC
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k05_stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)


class _Stop(NamedTuple):
    topic_id: bytes
    leader_epoch: int
    is_deleted: bool


@api(ApiKey.STOP_REPLICA)
async def handle(broker: Broker, request: Request[StopReplicaRequest]) -> StopReplicaResponse:
    message = request.message
    # Before the sender is checked: another controller may be heard of in a pause.
    stops = await _stops_of_replicas_here(broker, message)
    try:
        check_sender(broker, message.controller_epoch, message.broker_epoch)
    except KafkaError as error:
        return StopReplicaResponse(error_code=error.code)
    errors: dict[TopicPartition, KafkaError] = {}
    places: dict[TopicPartition, bool] = {}
    for place, stop in stops.items():
        partition = broker.partitions.find(*place)
        if partition is None or partition.topic_id != stop.topic_id:
            continue
        try:
            if stop.leader_epoch != EPOCH_OF_DELETED:
                check_leader_epoch(stop.leader_epoch, partition.leader_epoch)
            places[place] = stop.is_deleted
        except KafkaError as error:
            errors[place] = error.as_result()
    errors |= await broker.partitions.stop_replicas(places)
    if any(place.topic == OFFSETS_TOPIC for place in places):
        broker.groups.update_leadership()
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(
                topic_name=place.topic, partition_index=place.partition, error_code=error.code
            )
            for place, error in errors.items()
        ]
    )


async def _stops_of_replicas_here(broker: Broker, message: StopReplicaRequest) -> dict[TopicPartition, _Stop]:
    """What the request says of partitions that have a replica on this broker."""
    named = ((topic, state) for topic in message.topic_states for state in topic.partition_states)
    stops: dict[TopicPartition, _Stop] = {}
    async for topic, state in with_pauses(named):
        partition = broker.partitions.find(topic.topic_name, state.partition_index)
        if partition is not None and partition.topic_id == topic.topic_id:
            place = TopicPartition(topic.topic_name, state.partition_index)
            stops[place] = _Stop(topic.topic_id, state.leader_epoch, state.delete_partition)
    return stops
