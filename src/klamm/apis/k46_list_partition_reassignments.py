"""ListPartitionReassignments (key 46), version 0: the moves of replicas that are under way.

Null for the topics means all. Partitions that are not moved, or not there, are left out of the answer.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, with_pauses
from klamm.cluster.controller.reassignment import reassigned_partitions
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@api(ApiKey.LIST_PARTITION_REASSIGNMENTS)
async def handle(
    broker: Broker, request: Request[ListPartitionReassignmentsRequest]
) -> Steps[ListPartitionReassignmentsResponse]:
    if not broker.cluster.is_controller:
        return in_steps(
            ListPartitionReassignmentsResponse(
                error_code=ErrorCode.NOT_CONTROLLER, error_message="this broker is not the controller"
            )
        )
    asked = request.message.topics
    which = None
    if asked is not None:
        named = ((topic.name, index) for topic in asked for index in topic.partition_indexes)
        which = {TopicPartition(*each) async for each in with_pauses(named)}
    topics: dict[str, OngoingTopicReassignment] = {}
    for topic_partition, partition in reassigned_partitions(broker.cluster.image):
        if which is not None and topic_partition not in which:
            continue
        name, index = topic_partition
        topics.setdefault(name, OngoingTopicReassignment(name=name, partitions=[])).partitions.append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
        )
    return in_steps(ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values())))
