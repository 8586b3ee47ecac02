"""ListOffsets, key 2: offsets by timestamp, and the two ends of a log.

Versions 1-11, flexible from 6. Negative timestamps have special meanings: -1 latest, -2
earliest, -3 of the greatest timestamp (7+).
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    partition_index: int = field(int32)
    current_leader_epoch: int = field(int32, versions="4+", default=-1, ignorable=True)
    timestamp: int = field(int64)


class ListOffsetsTopic(Struct):
    name: str = field(string)
    partitions: list[ListOffsetsPartition] = field(array(ListOffsetsPartition))


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = field(int32)
    isolation_level: int = field(int8, versions="2+")
    topics: list[ListOffsetsTopic] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(int32, versions="10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    timestamp: int = field(int64, versions="1+", default=-1)
    offset: int = field(int64, versions="1+", default=-1)
    leader_epoch: int = field(int32, versions="4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = field(string)
    partitions: list[ListOffsetsPartitionResponse] = field(array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = field(int32, versions="2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field(array(ListOffsetsTopicResponse))
