"""AlterReplicaLogDirs (key 34), versions 1 and 2.

Moves replicas of this broker to other of its log directories, in the background; DescribeLogDirs shows how
far the copies are. Naming the directory in which a replica is calls its move off. A directory that is not in
log.dirs has LOG_DIR_NOT_FOUND, one that failed KAFKA_STORAGE_ERROR. A replica that is not on this broker has
REPLICA_NOT_AVAILABLE; if it comes later, it is made in the directory. A replica that is named more than once
moves to the directory that names it last, as in Kafka, and is answered once.
"""

from __future__ import annotations

from collections import defaultdict

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.apis.steps import Pauses, Steps, in_steps
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@api(ApiKey.ALTER_REPLICA_LOG_DIRS)
async def handle(
    broker: Broker, request: Request[AlterReplicaLogDirsRequest]
) -> Steps[AlterReplicaLogDirsResponse]:
    pauses = Pauses()
    paths: dict[TopicPartition, str] = {}
    for log_dir in request.message.dirs:
        for topic in log_dir.topics:
            for index in topic.partitions:
                await pauses.pause()
                paths[TopicPartition(topic.name, index)] = log_dir.path
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for topic_partition, path in paths.items():
        await pauses.pause()
        code = ErrorCode.NONE
        try:
            await broker.log_dir_moves.move(topic_partition, path)
        except KafkaError as error:
            code = error.code
        results[topic_partition.topic].append(
            AlterReplicaLogDirPartitionResult(partition_index=topic_partition.partition, error_code=code)
        )
    return in_steps(
        AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in results.items()
            ]
        )
    )
