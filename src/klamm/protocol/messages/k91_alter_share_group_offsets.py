"""AlterShareGroupOffsets, key 91: set the start offsets of a share group.

Version 0, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string, uuid


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = field(int32)
    start_offset: int = field(int64)


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(string)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(
        array(AlterShareGroupOffsetsRequestPartition)
    )


class AlterShareGroupOffsetsRequest(Message, api_key=91, versions="0", flexible="0+"):
    group_id: str = field(string)
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(array(AlterShareGroupOffsetsRequestTopic))


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(
        array(AlterShareGroupOffsetsResponsePartition)
    )


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(array(AlterShareGroupOffsetsResponseTopic))
