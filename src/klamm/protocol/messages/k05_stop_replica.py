"""StopReplica, key 5: the controller tells a broker to stop replicas, and which of them to delete.

Version 4 only, the newest that Kafka had: brokers of a cluster run the same program. Kafka names topics by
name alone; tag 10000 is ours and holds the topic id, so that a late request cannot delete a topic of the same
name that was made since.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int16, int32, int64, string, uuid


class StopReplicaPartitionState(Struct):
    partition_index: int = field(int32)
    leader_epoch: int = field(int32, default=-1)
    delete_partition: bool = field(boolean)


class StopReplicaTopicState(Struct):
    topic_name: str = field(string)
    partition_states: list[StopReplicaPartitionState] = field(array(StopReplicaPartitionState))
    topic_id: bytes = field(uuid, tag=10000)


class StopReplicaRequest(Message, api_key=5, versions="4", flexible="2+"):
    controller_id: int = field(int32)
    is_kraft_controller: bool = field(boolean)
    controller_epoch: int = field(int32)
    broker_epoch: int = field(int64, default=-1)
    topic_states: list[StopReplicaTopicState] = field(array(StopReplicaTopicState))


class StopReplicaPartitionError(Struct):
    topic_name: str = field(string)
    partition_index: int = field(int32)
    error_code: int = field(int16)


class StopReplicaResponse(Message, api_key=5, versions="4", flexible="2+"):
    error_code: int = field(int16)
    partition_errors: list[StopReplicaPartitionError] = field(array(StopReplicaPartitionError))
