"""ShareFetch, key 78: a member of a share group acquires records, and acknowledges those it had.

Versions 1-2, all flexible. Version 2 brings acquiring by records and renewals.
"""

from __future__ import annotations

from klamm.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    boolean,
    field,
    int8,
    int16,
    int32,
    int64,
    record_set,
    string,
    uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = field(int64)
    last_offset: int = field(int64)
    acknowledge_types: list[int] = field(array(int8))


class FetchPartition(Struct):
    partition_index: int = field(int32)
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch))


class FetchTopic(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[FetchPartition] = field(array(FetchPartition))


class ForgottenTopic(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[int] = field(array(int32))


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible="0+"):
    group_id: str | None = field(string, nullable="0+", default=None)
    member_id: str | None = field(string, nullable="0+")
    share_session_epoch: int = field(int32)
    max_wait_ms: int = field(int32)
    min_bytes: int = field(int32)
    max_bytes: int = field(int32, default=2**31 - 1)
    max_records: int = field(int32)
    batch_size: int = field(int32)
    share_acquire_mode: int = field(int8, versions="2+", ignorable=True)
    is_renew_ack: bool = field(boolean, versions="2+")
    topics: list[FetchTopic] = field(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = field(array(ForgottenTopic))


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32)
    leader_epoch: int = field(int32)


class AcquiredRecords(Struct):
    first_offset: int = field(int64)
    last_offset: int = field(int64)
    delivery_count: int = field(int16)


class PartitionData(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    acknowledge_error_code: int = field(int16)
    acknowledge_error_message: str | None = field(string, nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)
    records: Records = field(record_set)
    acquired_records: list[AcquiredRecords] = field(array(AcquiredRecords))


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(int32)
    host: str = field(string)
    port: int = field(int32)
    rack: str | None = field(string, nullable="0+", default=None)


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(int32)
    responses: list[ShareFetchableTopicResponse] = field(array(ShareFetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint))
