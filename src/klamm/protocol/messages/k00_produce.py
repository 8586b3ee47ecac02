"""Produce, key 0: a producer sends record batches to the leaders of their partitions.

Versions 3-13, flexible from 9. Version 8 brings the errors per record, 10 the leader to go to instead, 13
topic ids in place of names. With acks=0 there is no response.
"""

from __future__ import annotations

from klamm.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    field,
    int16,
    int32,
    int64,
    record_set,
    string,
    uuid,
)


class PartitionProduceData(Struct):
    index: int = field(int32)
    records: Records | None = field(record_set, nullable="0+")


class TopicProduceData(Struct):
    name: str = field(string, versions="0-12", ignorable=True)
    topic_id: bytes = field(uuid, versions="13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field(array(PartitionProduceData))


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = field(string, versions="3+", nullable="3+", default=None)
    acks: int = field(int16)
    timeout_ms: int = field(int32)
    topic_data: list[TopicProduceData] = field(array(TopicProduceData))


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(int32, versions="8+")
    batch_index_error_message: str | None = field(string, versions="8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32, versions="10+", default=-1)
    leader_epoch: int = field(int32, versions="10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int = field(int32)
    error_code: int = field(int16)
    base_offset: int = field(int64)
    log_append_time_ms: int = field(int64, versions="2+", default=-1, ignorable=True)
    log_start_offset: int = field(int64, versions="5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(
        array(BatchIndexAndErrorMessage), versions="8+", ignorable=True
    )
    error_message: str | None = field(string, versions="8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = field(LeaderIdAndEpoch, versions="10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = field(string, versions="0-12", ignorable=True)
    topic_id: bytes = field(uuid, versions="13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field(array(PartitionProduceResponse))


class NodeEndpoint(Struct):
    node_id: int = field(int32, versions="10+")
    host: str = field(string, versions="10+")
    port: int = field(int32, versions="10+")
    rack: str | None = field(string, versions="10+", nullable="10+", default=None)


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(int32, versions="1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), versions="10+", tag=0)
