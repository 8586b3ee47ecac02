"""DescribeTopicPartitions, key 75: topics with their partitions, a page at a time.

Version 0, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, string, uuid


class TopicRequest(Struct):
    name: str = field(string)


class Cursor(Struct):
    topic_name: str = field(string)
    partition_index: int = field(int32)


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field(array(TopicRequest))
    response_partition_limit: int = field(int32, default=2000)
    cursor: Cursor | None = field(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = field(int16)
    partition_index: int = field(int32)
    leader_id: int = field(int32)
    leader_epoch: int = field(int32, default=-1, ignorable=True)
    replica_nodes: list[int] = field(array(int32))
    isr_nodes: list[int] = field(array(int32))
    eligible_leader_replicas: list[int] | None = field(array(int32), nullable="0+", default=None)
    last_known_elr: list[int] | None = field(array(int32), nullable="0+", default=None)
    offline_replicas: list[int] = field(array(int32), ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = field(int16)
    name: str | None = field(string, nullable="0+")
    topic_id: bytes = field(uuid, ignorable=True)
    is_internal: bool = field(boolean, ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        array(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = field(int32, default=-(2**31))


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = field(array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = field(Cursor, nullable="0+", default=None)
