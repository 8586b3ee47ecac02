"""AlterPartitionReassignments (key 45), versions 0 and 1.

Begins to move partitions to other brokers, or cancels that (null for the replicas). Version 1 can forbid
that the number of replicas changes. The answer says that the moves have begun; ListPartitionReassignments
tells which are under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@api(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
async def handle(
    broker: Broker, request: Request[AlterPartitionReassignmentsRequest]
) -> Steps[AlterPartitionReassignmentsResponse]:
    message = request.message
    allows_change = message.allow_replication_factor_change
    if not broker.cluster.is_controller:
        return in_steps(
            AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=allows_change,
                error_code=ErrorCode.NOT_CONTROLLER,
                error_message="this broker is not the controller",
            )
        )
    targets: list[tuple[TopicPartition, Sequence[int] | None]] = [
        (TopicPartition(topic.name, partition.partition_index), partition.replicas)
        for topic in message.topics
        for partition in topic.partitions
    ]
    errors = await broker.cluster.reassign_partitions(targets, allow_replication_factor_change=allows_change)
    topics: dict[str, ReassignableTopicResponse] = {}
    for ((name, index), _), error in zip(targets, errors, strict=True):
        topic = topics.setdefault(name, ReassignableTopicResponse(name=name, partitions=[]))
        topic.partitions.append(_result(index, error))
    return in_steps(
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allows_change, error_message=None, responses=list(topics.values())
        )
    )


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )
