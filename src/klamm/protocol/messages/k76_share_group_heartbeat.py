"""ShareGroupHeartbeat, key 76: a member of a share group (KIP-932) joins, keeps its session, leaves.

Version 1, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string, uuid


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="0+"):
    group_id: str = field(string)
    member_id: str = field(string)
    member_epoch: int = field(int32)
    rack_id: str | None = field(string, nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field(array(string), nullable="0+", default=None)


class TopicPartitions(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[int] = field(array(int32))


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    member_id: str | None = field(string, nullable="0+", default=None)
    member_epoch: int = field(int32)
    heartbeat_interval_ms: int = field(int32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
