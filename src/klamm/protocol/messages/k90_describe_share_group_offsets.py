"""DescribeShareGroupOffsets, key 90: the start offsets of share groups.

Versions 0-1, all flexible. Version 1 brings the lag.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string, uuid


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(string)
    partitions: list[int] = field(array(int32))


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = field(string)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(
        array(DescribeShareGroupOffsetsRequestTopic), nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(array(DescribeShareGroupOffsetsRequestGroup))


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(int32)
    start_offset: int = field(int64)
    leader_epoch: int = field(int32)
    lag: int = field(int64, versions="1+", default=-1, ignorable=True)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(
        array(DescribeShareGroupOffsetsResponsePartition)
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = field(string)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(
        array(DescribeShareGroupOffsetsResponseTopic)
    )
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(
        array(DescribeShareGroupOffsetsResponseGroup)
    )
