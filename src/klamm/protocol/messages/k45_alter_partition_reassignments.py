"""AlterPartitionReassignments, key 45: move replicas to other brokers, or cancel such a move.

Versions 0-1, all flexible. Null for the replicas of a partition cancels its reassignment. Version 1 can
forbid that the number of replicas changes.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, string


class ReassignablePartition(Struct):
    partition_index: int = field(int32)
    replicas: list[int] | None = field(array(int32), nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = field(string)
    partitions: list[ReassignablePartition] = field(array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int = field(int32, default=60000)
    allow_replication_factor_change: bool = field(boolean, versions="1+", default=True)
    topics: list[ReassignableTopic] = field(array(ReassignableTopic))


class ReassignablePartitionResponse(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = field(string)
    partitions: list[ReassignablePartitionResponse] = field(array(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(int32)
    allow_replication_factor_change: bool = field(boolean, versions="1+", default=True, ignorable=True)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")
    responses: list[ReassignableTopicResponse] = field(array(ReassignableTopicResponse))
