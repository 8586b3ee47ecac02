"""OffsetCommit, key 8: a group stores its offsets.

Versions 2-10, flexible from 8. Version 7 brings the instance id of static members, 9 the member epochs of
the consumer protocol, 10 topic ids.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(int32)
    committed_offset: int = field(int64)
    committed_leader_epoch: int = field(int32, versions="6+", default=-1, ignorable=True)
    committed_metadata: str | None = field(string, nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = field(string, versions="0-9", ignorable=True)
    topic_id: bytes = field(uuid, versions="10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field(array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Message, api_key=8, versions="2-10", flexible="8+"):
    group_id: str = field(string)
    generation_id_or_member_epoch: int = field(int32, versions="1+", default=-1, ignorable=True)
    member_id: str = field(string, versions="1+", ignorable=True)
    group_instance_id: str | None = field(string, versions="7+", nullable="7+", default=None)
    retention_time_ms: int = field(int64, versions="2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field(array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)


class OffsetCommitResponseTopic(Struct):
    name: str = field(string, versions="0-9", ignorable=True)
    topic_id: bytes = field(uuid, versions="10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field(array(OffsetCommitResponsePartition))


class OffsetCommitResponse(Message, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int = field(int32, versions="3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field(array(OffsetCommitResponseTopic))
