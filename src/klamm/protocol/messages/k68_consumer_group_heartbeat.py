"""ConsumerGroupHeartbeat, key 68: a member of a KIP-848 group joins, keeps its session, leaves.

Versions 0-1, all flexible. Version 1 brings subscriptions by regular expression.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string, uuid


class TopicPartitions(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[int] = field(array(int32))


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = field(string)
    member_id: str = field(string)
    member_epoch: int = field(int32)
    instance_id: str | None = field(string, nullable="0+", default=None)
    rack_id: str | None = field(string, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(int32, default=-1)
    subscribed_topic_names: list[str] | None = field(array(string), nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(string, versions="1+", nullable="1+", default=None)
    server_assignor: str | None = field(string, nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field(
        array(TopicPartitions), nullable="0+", default=None
    )


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    member_id: str | None = field(string, nullable="0+", default=None)
    member_epoch: int = field(int32)
    heartbeat_interval_ms: int = field(int32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
