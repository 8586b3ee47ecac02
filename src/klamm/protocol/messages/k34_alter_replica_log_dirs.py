"""AlterReplicaLogDirs, key 34: move replicas of a broker to other log directories of that broker.

Versions 1-2, flexible from 2.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class AlterReplicaLogDirTopic(Struct):
    name: str = field(string)
    partitions: list[int] = field(array(int32))


class AlterReplicaLogDir(Struct):
    path: str = field(string)
    topics: list[AlterReplicaLogDirTopic] = field(array(AlterReplicaLogDirTopic))


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = field(array(AlterReplicaLogDir))


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field(string)
    partitions: list[AlterReplicaLogDirPartitionResult] = field(array(AlterReplicaLogDirPartitionResult))


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int = field(int32)
    results: list[AlterReplicaLogDirTopicResult] = field(array(AlterReplicaLogDirTopicResult))
