"""LeaderAndIsr, key 4: the controller tells a broker which partitions it leads and follows.

Version 7 only, the newest that Kafka had: brokers of a cluster run the same program. `type` is 1 for a
request that has only what changed, and 2 for the first request to a broker, which has all its partitions. The
topic's settings come with UpdateMetadata, which is sent before.
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


class LeaderAndIsrPartitionState(Struct):
    partition_index: int = field(int32)
    controller_epoch: int = field(int32)
    leader: int = field(int32)
    leader_epoch: int = field(int32)
    isr: list[int] = field(array(int32))
    partition_epoch: int = field(int32)
    replicas: list[int] = field(array(int32))
    adding_replicas: list[int] = field(array(int32))
    removing_replicas: list[int] = field(array(int32))
    is_new: bool = field(boolean)
    leader_recovery_state: int = field(int8)


class LeaderAndIsrTopicState(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)
    partition_states: list[LeaderAndIsrPartitionState] = field(array(LeaderAndIsrPartitionState))


class LeaderAndIsrLiveLeader(Struct):
    broker_id: int = field(int32)
    host_name: str = field(string)
    port: int = field(int32)


class LeaderAndIsrRequest(Message, api_key=4, versions="7", flexible="4+"):
    controller_id: int = field(int32)
    is_kraft_controller: bool = field(boolean)
    controller_epoch: int = field(int32)
    broker_epoch: int = field(int64, default=-1)
    type: int = field(int8)
    topic_states: list[LeaderAndIsrTopicState] = field(array(LeaderAndIsrTopicState))
    live_leaders: list[LeaderAndIsrLiveLeader] = field(array(LeaderAndIsrLiveLeader))


class LeaderAndIsrPartitionError(Struct):
    partition_index: int = field(int32)
    error_code: int = field(int16)


class LeaderAndIsrTopicError(Struct):
    topic_id: bytes = field(uuid)
    partition_errors: list[LeaderAndIsrPartitionError] = field(array(LeaderAndIsrPartitionError))


class LeaderAndIsrResponse(Message, api_key=4, versions="7", flexible="4+"):
    error_code: int = field(int16)
    topics: list[LeaderAndIsrTopicError] = field(array(LeaderAndIsrTopicError))
