"""OffsetDelete, key 47: delete the offsets of topics that a group no longer subscribes to.

Version 0, never flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(int32)


class OffsetDeleteRequestTopic(Struct):
    name: str = field(string)
    partitions: list[OffsetDeleteRequestPartition] = field(array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    group_id: str = field(string)
    topics: list[OffsetDeleteRequestTopic] = field(array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)


class OffsetDeleteResponseTopic(Struct):
    name: str = field(string)
    partitions: list[OffsetDeleteResponsePartition] = field(array(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    error_code: int = field(int16)
    throttle_time_ms: int = field(int32, ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field(array(OffsetDeleteResponseTopic))
