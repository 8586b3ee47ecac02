"""AlterPartition (key 56), versions 2 and 3, between brokers only.

A leader asks the controller for another ISR. A broker that is not the controller passes the request on: the
leader may have lost its way to the controller. Version 3 has the broker epoch of each member, so that a
broker that was restarted since does not join by what it had fetched before the restart.
"""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.cluster.controller.isr import ANY_BROKER_EPOCH, IsrProposal, IsrResult
from klamm.cluster.service import ClusterService
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionState,
    AlterPartitionTopicResult,
)


@api(ApiKey.ALTER_PARTITION)
async def handle(broker: Broker, request: Request[AlterPartitionRequest]) -> AlterPartitionResponse:
    if not broker.cluster.is_controller:
        return await broker.relay_alter_partition(request.message)
    return await answer(broker.cluster, request.message)


async def answer(cluster: ClusterService, message: AlterPartitionRequest) -> AlterPartitionResponse:
    """Also for the leaders on the controller's own broker."""
    proposals = [
        IsrProposal(
            topic.topic_id, state.partition_index, state.leader_epoch, state.partition_epoch, _members(state)
        )
        for topic in message.topics
        for state in topic.partitions
    ]
    try:
        results = await cluster.alter_isrs(message.broker_id, message.broker_epoch, proposals)
    except KafkaError as error:
        return AlterPartitionResponse(error_code=error.code)
    topics: dict[bytes, AlterPartitionTopicResult] = {}
    for proposal, result in zip(proposals, results, strict=True):
        topic = topics.setdefault(
            proposal.topic_id, AlterPartitionTopicResult(topic_id=proposal.topic_id, partitions=[])
        )
        topic.partitions.append(_result(proposal.partition, result))
    return AlterPartitionResponse(topics=list(topics.values()))


def _members(state: AlterPartitionState) -> tuple[tuple[int, int], ...]:
    if state.new_isr_with_epochs:
        return tuple((member.broker_id, member.broker_epoch) for member in state.new_isr_with_epochs)
    return tuple((broker_id, ANY_BROKER_EPOCH) for broker_id in state.new_isr)


def _result(index: int, result: IsrResult) -> AlterPartitionResult:
    if isinstance(result, KafkaError):
        return AlterPartitionResult(partition_index=index, error_code=result.code)
    return AlterPartitionResult(
        partition_index=index,
        error_code=ErrorCode.NONE,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=list(result.isr),
        partition_epoch=result.partition_epoch,
    )
