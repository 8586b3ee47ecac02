"""ConsumerGroupDescribe, key 69: groups of the new protocol (KIP-848) with their members and assignments.

Versions 0-1, all flexible. Version 1 brings the type of a member.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int8, int16, int32, string, uuid


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = field(array(string))
    include_authorized_operations: bool = field(boolean)


class TopicPartitions(Struct):
    topic_id: bytes = field(uuid)
    topic_name: str = field(string)
    partitions: list[int] = field(array(int32))


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class Member(Struct):
    member_id: str = field(string)
    instance_id: str | None = field(string, nullable="0+", default=None)
    rack_id: str | None = field(string, nullable="0+", default=None)
    member_epoch: int = field(int32)
    client_id: str = field(string)
    client_host: str = field(string)
    subscribed_topic_names: list[str] = field(array(string))
    subscribed_topic_regex: str | None = field(string, nullable="0+", default=None)
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    member_type: int = field(int8, versions="1+", default=-1, ignorable=True)


class DescribedGroup(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    group_id: str = field(string)
    group_state: str = field(string)
    group_epoch: int = field(int32)
    assignment_epoch: int = field(int32)
    assignor_name: str = field(string)
    members: list[Member] = field(array(Member))
    authorized_operations: int = field(int32, default=-(2**31))


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    groups: list[DescribedGroup] = field(array(DescribedGroup))
