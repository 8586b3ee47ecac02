"""AlterPartitionReassignments (key 45), versions 0 and 1.

Begins to move partitions to other brokers, or cancels that (null for the replicas). Version 1 can forbid
that the number of replicas changes. The answer says that the moves have begun; ListPartitionReassignments
tells which are under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily, with_pauses
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
    targets: dict[TopicPartition, Sequence[int] | None] = {}
    errors: dict[TopicPartition, KafkaError | None] = {}
    asked = ((topic.name, partition) for topic in message.topics for partition in topic.partitions)
    async for name, partition in with_pauses(asked):
        place = TopicPartition(name, partition.partition_index)
        if partition.replicas is None or len(partition.replicas) <= len(broker.cluster.image.brokers):
            targets[place] = partition.replicas
        else:
            errors[place] = KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{place} is given {len(partition.replicas)} replicas: there are not so many brokers",
            )
    outcomes = await broker.cluster.reassign_partitions(
        list(targets.items()), allow_replication_factor_change=allows_change
    )
    errors.update(zip(targets, outcomes, strict=True))
    by_topic: dict[str, list[TopicPartition]] = {}
    async for place in with_pauses(list(errors)):
        by_topic.setdefault(place.topic, []).append(place)
    return in_steps(
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allows_change,
            error_message=None,
            responses=lazily(
                list(by_topic),
                lambda name: ReassignableTopicResponse(
                    name=name,
                    partitions=lazily(by_topic[name], lambda place: _result(place.partition, errors[place])),
                ),
            ),
        )
    )


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )
