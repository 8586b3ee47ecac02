"""UpdateMetadata, key 6: the controller tells every broker what the cluster looks like.

Version 8 only, the newest that Kafka had: brokers of a cluster run the same program. `type` is 1 for a
request that has only what changed, and 2 for one that replaces everything. `live_brokers` is always complete.

Kafka's brokers read settings, deletions and broker epochs elsewhere. Here they come in tagged fields of our
own, from 10000 on, far from any number that Kafka uses:

    request, 10000   deleted topics
    request, 10001   changed settings of brokers ("" are those of all); an empty list forgets them
    request, 10002   changed settings of groups, likewise
    topic,   10000   settings of the topic; null if they are the same as before
    partition, 10000 replicas that a reassignment adds
    partition, 10001 replicas that a reassignment removes
    partition, 10002 replicas outside the ISR that are eligible to lead
    broker,  10000   broker epoch
    broker,  10001   true if the broker has asked for a controlled shutdown
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


class UpdateMetadataSetting(Struct):
    name: str = field(string)
    value: str = field(string)


class UpdateMetadataConfig(Struct):
    name: str = field(string)
    settings: list[UpdateMetadataSetting] = field(array(UpdateMetadataSetting))


class UpdateMetadataDeletedTopic(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)


class UpdateMetadataPartitionState(Struct):
    partition_index: int = field(int32)
    controller_epoch: int = field(int32)
    leader: int = field(int32)
    leader_epoch: int = field(int32)
    isr: list[int] = field(array(int32))
    zk_version: int = field(int32)
    replicas: list[int] = field(array(int32))
    offline_replicas: list[int] = field(array(int32))
    adding_replicas: list[int] = field(array(int32), tag=10000)
    removing_replicas: list[int] = field(array(int32), tag=10001)
    eligible_replicas: list[int] = field(array(int32), tag=10002)


class UpdateMetadataTopicState(Struct):
    topic_name: str = field(string)
    topic_id: bytes = field(uuid)
    partition_states: list[UpdateMetadataPartitionState] = field(array(UpdateMetadataPartitionState))
    configs: list[UpdateMetadataSetting] | None = field(
        array(UpdateMetadataSetting), tag=10000, nullable="8+", default=None
    )


class UpdateMetadataEndpoint(Struct):
    port: int = field(int32)
    host: str = field(string)
    listener: str = field(string)
    security_protocol: int = field(int16)


class UpdateMetadataBroker(Struct):
    id: int = field(int32)
    endpoints: list[UpdateMetadataEndpoint] = field(array(UpdateMetadataEndpoint))
    rack: str | None = field(string, nullable="0+")
    broker_epoch: int = field(int64, tag=10000)
    is_shutting_down: bool = field(boolean, tag=10001)


class UpdateMetadataRequest(Message, api_key=6, versions="8", flexible="6+"):
    controller_id: int = field(int32)
    is_kraft_controller: bool = field(boolean)
    type: int = field(int8, tag=0)
    controller_epoch: int = field(int32)
    broker_epoch: int = field(int64, default=-1)
    topic_states: list[UpdateMetadataTopicState] = field(array(UpdateMetadataTopicState))
    live_brokers: list[UpdateMetadataBroker] = field(array(UpdateMetadataBroker))
    deleted_topics: list[UpdateMetadataDeletedTopic] = field(array(UpdateMetadataDeletedTopic), tag=10000)
    broker_configs: list[UpdateMetadataConfig] = field(array(UpdateMetadataConfig), tag=10001)
    group_configs: list[UpdateMetadataConfig] = field(array(UpdateMetadataConfig), tag=10002)


class UpdateMetadataResponse(Message, api_key=6, versions="8", flexible="6+"):
    error_code: int = field(int16)
