"""AlterPartition, key 56: a leader asks the controller to change the in-sync replicas of its partitions.

Versions 2-3, all flexible. Version 3 has the broker epoch of each in-sync replica (KIP-903).
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int8, int16, int32, int64, uuid


class BrokerState(Struct):
    broker_id: int = field(int32, versions="3+")
    broker_epoch: int = field(int64, versions="3+", default=-1)


class AlterPartitionState(Struct):
    partition_index: int = field(int32)
    leader_epoch: int = field(int32)
    new_isr: list[int] = field(array(int32), versions="0-2")
    new_isr_with_epochs: list[BrokerState] = field(array(BrokerState), versions="3+")
    leader_recovery_state: int = field(int8)
    partition_epoch: int = field(int32)


class AlterPartitionTopic(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[AlterPartitionState] = field(array(AlterPartitionState))


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = field(int32)
    broker_epoch: int = field(int64, default=-1)
    topics: list[AlterPartitionTopic] = field(array(AlterPartitionTopic))


class AlterPartitionResult(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)
    leader_id: int = field(int32)
    leader_epoch: int = field(int32)
    isr: list[int] = field(array(int32))
    leader_recovery_state: int = field(int8)
    partition_epoch: int = field(int32)


class AlterPartitionTopicResult(Struct):
    topic_id: bytes = field(uuid)
    partitions: list[AlterPartitionResult] = field(array(AlterPartitionResult))


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    topics: list[AlterPartitionTopicResult] = field(array(AlterPartitionTopicResult))
