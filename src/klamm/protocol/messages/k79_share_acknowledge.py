"""ShareAcknowledge, key 79: a member of a share group acknowledges records without fetching.

Versions 1-2, all flexible. Version 2 brings renewals.
"""

from __future__ import annotations

from klamm.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    field,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = field(int64)
    last_offset: int = field(int64)
    acknowledge_types: list[int] = field(array(int8))


class AcknowledgePartition(Struct):
    partition_index: int = field(int32)
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch))


class AcknowledgeTopic(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[AcknowledgePartition] = field(array(AcknowledgePartition))


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible="0+"):
    group_id: str | None = field(string, nullable="0+", default=None)
    member_id: str | None = field(string, nullable="0+")
    share_session_epoch: int = field(int32)
    is_renew_ack: bool = field(boolean, versions="2+")
    topics: list[AcknowledgeTopic] = field(array(AcknowledgeTopic))


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32)
    leader_epoch: int = field(int32)


class PartitionData(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(int32)
    host: str = field(string)
    port: int = field(int32)
    rack: str | None = field(string, nullable="0+", default=None)


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(int32, versions="2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = field(array(ShareAcknowledgeTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint))
