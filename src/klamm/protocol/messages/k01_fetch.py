"""Fetch, key 1: a consumer or a follower reads record batches.

Versions 4-18, flexible from 12. Version 7 brings sessions, 9 the leader epoch, 11 the rack, 12 the
diverging epoch for followers, 13 topic ids in place of names, 15 moves the replica id into a tagged
struct, 16 names the leader to go to instead.
"""

from __future__ import annotations

from klamm.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    int64,
    record_set,
    string,
    uuid,
)


class ReplicaState(Struct):
    replica_id: int = field(int32, versions="15+", default=-1)
    replica_epoch: int = field(int64, versions="15+", default=-1)


class FetchPartition(Struct):
    partition: int = field(int32)
    current_leader_epoch: int = field(int32, versions="9+", default=-1, ignorable=True)
    fetch_offset: int = field(int64)
    last_fetched_epoch: int = field(int32, versions="12+", default=-1)
    log_start_offset: int = field(int64, versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(int32)
    replica_directory_id: bytes = field(uuid, versions="17+", tag=0, ignorable=True)
    high_watermark: int = field(int64, versions="18+", tag=1, default=2**63 - 1, ignorable=True)


class FetchTopic(Struct):
    topic: str = field(string, versions="0-12", ignorable=True)
    topic_id: bytes = field(uuid, versions="13+", ignorable=True)
    partitions: list[FetchPartition] = field(array(FetchPartition))


class ForgottenTopic(Struct):
    topic: str = field(string, versions="7-12", ignorable=True)
    topic_id: bytes = field(uuid, versions="13+", ignorable=True)
    partitions: list[int] = field(array(int32), versions="7+")


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = field(
        string, versions="12+", nullable="12+", tag=0, default=None, ignorable=True
    )
    replica_id: int = field(int32, versions="0-14", default=-1)
    replica_state: ReplicaState | None = field(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = field(int32)
    min_bytes: int = field(int32)
    max_bytes: int = field(int32, versions="3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = field(int8, versions="4+", ignorable=True)
    session_id: int = field(int32, versions="7+", ignorable=True)
    session_epoch: int = field(int32, versions="7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = field(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = field(array(ForgottenTopic), versions="7+")
    rack_id: str = field(string, versions="11+", ignorable=True)


class EpochEndOffset(Struct):
    epoch: int = field(int32, versions="12+", default=-1)
    end_offset: int = field(int64, versions="12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32, versions="12+", default=-1)
    leader_epoch: int = field(int32, versions="12+", default=-1)


class SnapshotId(Struct):
    end_offset: int = field(int64, default=-1)
    epoch: int = field(int32, default=-1)


class AbortedTransaction(Struct):
    producer_id: int = field(int64, versions="4+")
    first_offset: int = field(int64, versions="4+")


class PartitionData(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    high_watermark: int = field(int64)
    last_stable_offset: int = field(int64, versions="4+", default=-1, ignorable=True)
    log_start_offset: int = field(int64, versions="5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = field(EpochEndOffset, versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = field(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId | None = field(SnapshotId, versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        array(AbortedTransaction), versions="4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = field(int32, versions="11+", default=-1)
    records: Records | None = field(record_set, nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = field(string, versions="0-12", ignorable=True)
    topic_id: bytes = field(uuid, versions="13+", ignorable=True)
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(int32, versions="16+")
    host: str = field(string, versions="16+")
    port: int = field(int32, versions="16+")
    rack: str | None = field(string, versions="16+", nullable="16+", default=None)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    error_code: int = field(int16, versions="7+", ignorable=True)
    session_id: int = field(int32, versions="7+")
    responses: list[FetchableTopicResponse] = field(array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), versions="16+", tag=0)
