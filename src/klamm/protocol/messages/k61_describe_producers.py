"""DescribeProducers, key 61: the idempotent producers whose state a partition keeps.

Version 0, all flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string


class TopicRequest(Struct):
    name: str = field(string)
    partition_indexes: list[int] = field(array(int32))


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field(array(TopicRequest))


class ProducerState(Struct):
    producer_id: int = field(int64)
    producer_epoch: int = field(int32)
    last_sequence: int = field(int32, default=-1)
    last_timestamp: int = field(int64, default=-1)
    coordinator_epoch: int = field(int32)
    current_txn_start_offset: int = field(int64, default=-1)


class PartitionResponse(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    error_message: str | None = field(string, nullable="0+", default=None)
    active_producers: list[ProducerState] = field(array(ProducerState))


class TopicResponse(Struct):
    name: str = field(string)
    partitions: list[PartitionResponse] = field(array(PartitionResponse))


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    topics: list[TopicResponse] = field(array(TopicResponse))
