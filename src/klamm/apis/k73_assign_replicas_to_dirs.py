"""AssignReplicasToDirs (key 73), version 0, between brokers only.

A broker tells the controller which of its replicas it cannot use, as their log directory has failed or has no
room: they are in the directory LOST. Replicas in any other directory can be used. Kafka's controller also
notes the other directories; here only the broker itself knows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.cluster.controller.offline_replicas import ReplicaKey
from klamm.cluster.service import ClusterService
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k73_assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedDirectoryResult,
    AssignedPartition,
    AssignedPartitionResult,
    AssignedTopic,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

UNASSIGNED = bytes(16)
"""Stands for the directories that the broker can use."""
LOST = bytes(15) + b"\x01"


@api(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
async def handle(
    broker: Broker, request: Request[AssignReplicasToDirsRequest]
) -> AssignReplicasToDirsResponse:
    return await answer(broker.cluster, request.message)


def request_to_assign(
    broker_id: int, broker_epoch: int, *, offline: Iterable[ReplicaKey], online: Iterable[ReplicaKey]
) -> AssignReplicasToDirsRequest:
    return AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        directories=[
            AssignedDirectory(
                id=directory,
                topics=[
                    AssignedTopic(topic_id=topic_id, partitions=[AssignedPartition(partition_index=index)])
                    for topic_id, index in keys
                ],
            )
            for directory, keys in ((LOST, offline), (UNASSIGNED, online))
        ],
    )


async def answer(
    cluster: ClusterService, message: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """Also for the replicas on the controller's own broker."""
    offline: list[ReplicaKey] = []
    online: list[ReplicaKey] = []
    for directory in message.directories:
        (offline if directory.id == LOST else online).extend(
            (topic.topic_id, each.partition_index) for topic in directory.topics for each in topic.partitions
        )
    try:
        await cluster.change_replicas(message.broker_id, message.broker_epoch, offline=offline, online=online)
    except KafkaError as error:
        return AssignReplicasToDirsResponse(error_code=error.code)
    return AssignReplicasToDirsResponse(
        directories=[
            AssignedDirectoryResult(
                id=directory.id,
                topics=[
                    AssignedTopicResult(
                        topic_id=topic.topic_id,
                        partitions=[
                            AssignedPartitionResult(
                                partition_index=each.partition_index, error_code=ErrorCode.NONE
                            )
                            for each in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in message.directories
        ]
    )
