"""AssignReplicasToDirs (key 73), version 0, between brokers only.

A broker tells the controller which of its replicas it cannot use, as their log directory has failed or has no
room: they are in the directory LOST. Replicas in any other directory can be used. Kafka's controller also
notes the other directories; here only the broker itself knows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Steps, in_steps, lazily, pieces_of, with_pauses
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


REPLICAS_AT_ONCE = 1_000
"""Replicas whose changes are worked out together: 10 to 20 milliseconds."""


@api(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
async def handle(
    broker: Broker, request: Request[AssignReplicasToDirsRequest]
) -> AssignReplicasToDirsResponse | Steps[AssignReplicasToDirsResponse]:
    try:
        await assign(broker.cluster, request.message)
    except KafkaError as error:
        return AssignReplicasToDirsResponse(error_code=error.code)
    directories = lazily(request.message.directories, _directory_result)
    return in_steps(AssignReplicasToDirsResponse(directories=directories))


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


async def assign(cluster: ClusterService, message: AssignReplicasToDirsRequest) -> None:
    """Do as the request says; raises a KafkaError. Also for the replicas on the controller's own broker.

    A replica that is named in several directories is offline if LOST is one of them.
    """
    offline: dict[ReplicaKey, None] = {}
    online: dict[ReplicaKey, None] = {}
    named = (
        (directory.id, (topic.topic_id, each.partition_index))
        for directory in message.directories
        for topic in directory.topics
        for each in topic.partitions
    )
    async for directory_id, key in with_pauses(named):
        (offline if directory_id == LOST else online)[key] = None
    changes: list[tuple[list[ReplicaKey], list[ReplicaKey]]] = []
    if not offline and not online:
        changes.append(([], []))  # the broker epoch is checked all the same
    changes += [(piece, []) for piece in pieces_of(offline, REPLICAS_AT_ONCE)]
    changes += [
        ([], piece) for piece in pieces_of((key for key in online if key not in offline), REPLICAS_AT_ONCE)
    ]
    for gone, back in changes:
        await cluster.change_replicas(message.broker_id, message.broker_epoch, offline=gone, online=back)
        await asyncio.sleep(0)


def _directory_result(directory: AssignedDirectory) -> AssignedDirectoryResult:
    return AssignedDirectoryResult(id=directory.id, topics=lazily(directory.topics, _topic_result))


def _topic_result(topic: AssignedTopic) -> AssignedTopicResult:
    return AssignedTopicResult(
        topic_id=topic.topic_id, partitions=lazily(topic.partitions, _partition_result)
    )


def _partition_result(partition: AssignedPartition) -> AssignedPartitionResult:
    return AssignedPartitionResult(partition_index=partition.partition_index, error_code=ErrorCode.NONE)
