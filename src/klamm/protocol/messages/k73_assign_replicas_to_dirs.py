"""AssignReplicasToDirs, key 73: a broker tells the controller in which log directories its replicas are.

Version 0, flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, uuid


class AssignedPartition(Struct):
    partition_index: int = field(int32)


class AssignedTopic(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[AssignedPartition] = field(array(AssignedPartition))


class AssignedDirectory(Struct):
    id: bytes = field(uuid)
    topics: list[AssignedTopic] = field(array(AssignedTopic))


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = field(int32)
    broker_epoch: int = field(int64, default=-1)
    directories: list[AssignedDirectory] = field(array(AssignedDirectory))


class AssignedPartitionResult(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)


class AssignedTopicResult(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[AssignedPartitionResult] = field(array(AssignedPartitionResult))


class AssignedDirectoryResult(Struct):
    id: bytes = field(uuid)
    topics: list[AssignedTopicResult] = field(array(AssignedTopicResult))


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    directories: list[AssignedDirectoryResult] = field(array(AssignedDirectoryResult))
