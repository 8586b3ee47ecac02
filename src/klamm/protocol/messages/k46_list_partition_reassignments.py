"""ListPartitionReassignments, key 46: the reassignments that are under way.

Version 0, flexible. Null for the topics means all.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, string


class ListPartitionReassignmentsTopics(Struct):
    name: str = field(string)
    partition_indexes: list[int] = field(array(int32))


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int = field(int32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        array(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = field(int32)
    replicas: list[int] = field(array(int32))
    adding_replicas: list[int] = field(array(int32))
    removing_replicas: list[int] = field(array(int32))


class OngoingTopicReassignment(Struct):
    name: str = field(string)
    partitions: list[OngoingPartitionReassignment] = field(array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    topics: list[OngoingTopicReassignment] = field(array(OngoingTopicReassignment))
