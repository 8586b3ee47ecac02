"""StreamsGroupDescribe, key 89: streams groups (KIP-1071) with their topology, members and tasks.

Version 0, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, int64, string, uint16


class StreamsGroupDescribeRequest(Message, api_key=89, versions="0", flexible="0+"):
    group_ids: list[str] = field(array(string))
    include_authorized_operations: bool = field(boolean)


class KeyValue(Struct):
    key: str = field(string)
    value: str = field(string)


class TopicInfo(Struct):
    name: str = field(string)
    partitions: int = field(int32)
    replication_factor: int = field(int16)
    topic_configs: list[KeyValue] = field(array(KeyValue))


class Subtopology(Struct):
    subtopology_id: str = field(string)
    source_topics: list[str] = field(array(string))
    repartition_sink_topics: list[str] = field(array(string))
    state_changelog_topics: list[TopicInfo] = field(array(TopicInfo))
    repartition_source_topics: list[TopicInfo] = field(array(TopicInfo))


class Topology(Struct):
    epoch: int = field(int32)
    subtopologies: list[Subtopology] | None = field(array(Subtopology), nullable="0+", default=None)


class Endpoint(Struct):
    host: str = field(string)
    port: int = field(uint16)


class TaskOffset(Struct):
    subtopology_id: str = field(string)
    partition: int = field(int32)
    offset: int = field(int64)


class TaskIds(Struct):
    subtopology_id: str = field(string)
    partitions: list[int] = field(array(int32))


class Assignment(Struct):
    active_tasks: list[TaskIds] = field(array(TaskIds))
    standby_tasks: list[TaskIds] = field(array(TaskIds))
    warmup_tasks: list[TaskIds] = field(array(TaskIds))


class Member(Struct):
    member_id: str = field(string)
    member_epoch: int = field(int32)
    instance_id: str | None = field(string, nullable="0+", default=None)
    rack_id: str | None = field(string, nullable="0+", default=None)
    client_id: str = field(string)
    client_host: str = field(string)
    topology_epoch: int = field(int32)
    process_id: str = field(string)
    user_endpoint: Endpoint | None = field(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] = field(array(KeyValue))
    task_offsets: list[TaskOffset] = field(array(TaskOffset))
    task_end_offsets: list[TaskOffset] = field(array(TaskOffset))
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    is_classic: bool = field(boolean)


class DescribedGroup(Struct):
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    group_id: str = field(string)
    group_state: str = field(string)
    group_epoch: int = field(int32)
    assignment_epoch: int = field(int32)
    topology: Topology | None = field(Topology, nullable="0+", default=None)
    members: list[Member] = field(array(Member))
    authorized_operations: int = field(int32, default=-(2**31))


class StreamsGroupDescribeResponse(Message, api_key=89, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    groups: list[DescribedGroup] = field(array(DescribedGroup))
