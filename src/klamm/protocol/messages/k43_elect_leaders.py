"""ElectLeaders, key 43: elect the preferred replicas of partitions, or any that are alive.

Versions 0-2, flexible from 2. Version 1 brings unclean elections. Null for the partitions means all.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, string


class ElectLeadersTopic(Struct):
    topic: str = field(string)
    partitions: list[int] = field(array(int32))


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = field(int8, versions="1+")
    topic_partitions: list[ElectLeadersTopic] | None = field(array(ElectLeadersTopic), nullable="0+")
    timeout_ms: int = field(int32, default=60000)


class PartitionResult(Struct):
    partition_id: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = field(string)
    partition_result: list[PartitionResult] = field(array(PartitionResult))


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16, versions="1+")
    replica_election_results: list[ReplicaElectionResult] = field(array(ReplicaElectionResult))
