"""AlterPartition (key 56), versions 2 and 3, between brokers only.

A leader asks the controller for another ISR. A broker that is not the controller passes the request on: the
leader may have lost its way to the controller. Version 3 has the broker epoch of each member, so that a
broker that was restarted since does not join by what it had fetched before the restart.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps
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

PROPOSALS_AT_ONCE = 1_000
"""Proposals that are decided together: 10 to 20 milliseconds. Few leaders have more at a time."""


@api(ApiKey.ALTER_PARTITION)
async def handle(broker: Broker, request: Request[AlterPartitionRequest]) -> Steps[AlterPartitionResponse]:
    if not broker.cluster.is_controller:
        response = await broker.relay_alter_partition(request.message)
    else:
        response = await answer(broker.cluster, request.message)
    return in_steps(response)


async def answer(cluster: ClusterService, message: AlterPartitionRequest) -> AlterPartitionResponse:
    """Also for the leaders on the controller's own broker."""
    named = ((topic.topic_id, state) for topic in message.topics for state in topic.partitions)
    topics: dict[bytes, AlterPartitionTopicResult] = {}
    # A request that names no partition is refused as well if its broker epoch is over.
    piece = list(islice(named, PROPOSALS_AT_ONCE))
    while True:
        proposals = [
            IsrProposal(
                topic_id, state.partition_index, state.leader_epoch, state.partition_epoch, _members(state)
            )
            for topic_id, state in piece
        ]
        try:
            results = await cluster.alter_isrs(message.broker_id, message.broker_epoch, proposals)
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code)
        for proposal, result in zip(proposals, results, strict=True):
            topic = topics.get(proposal.topic_id)
            if topic is None:
                topic = AlterPartitionTopicResult(topic_id=proposal.topic_id, partitions=[])
                topics[proposal.topic_id] = topic
            topic.partitions.append(_result(proposal.partition, result))
        if not (piece := list(islice(named, PROPOSALS_AT_ONCE))):
            return AlterPartitionResponse(topics=list(topics.values()))
        await asyncio.sleep(0)


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
