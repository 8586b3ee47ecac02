"""ShareGroupDescribe, key 77: share groups (KIP-932) with their members and assignments.

Version 1, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, string, uuid


class ShareGroupDescribeRequest(Message, api_key=77, versions="1", flexible="0+"):
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
    rack_id: str | None = field(string, nullable="0+", default=None)
    member_epoch: int = field(int32)
    client_id: str = field(string)
    client_host: str = field(string)
    subscribed_topic_names: list[str] = field(array(string))
    assignment: Assignment = field(Assignment)


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


class ShareGroupDescribeResponse(Message, api_key=77, versions="1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    groups: list[DescribedGroup] = field(array(DescribedGroup))
