"""CreateTopics, key 19: new topics, with counts or with the assignment of every replica.

Versions 2-7, flexible from 5. Version 5 returns what was made, 7 its topic id.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, boolean, field, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Struct):
    partition_index: int = field(int32)
    broker_ids: list[int] = field(array(int32))


class CreatableTopicConfig(Struct):
    name: str = field(string)
    value: str | None = field(string, nullable="0+")


class CreatableTopic(Struct):
    name: str = field(string)
    num_partitions: int = field(int32)
    replication_factor: int = field(int16)
    assignments: list[CreatableReplicaAssignment] = field(array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = field(array(CreatableTopicConfig))


class CreateTopicsRequest(Message, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = field(array(CreatableTopic))
    timeout_ms: int = field(int32, default=60000)
    validate_only: bool = field(boolean, versions="1+")


class CreatableTopicConfigs(Struct):
    name: str = field(string, versions="5+")
    value: str | None = field(string, versions="5+", nullable="5+")
    read_only: bool = field(boolean, versions="5+")
    config_source: int = field(int8, versions="5+", default=-1, ignorable=True)
    is_sensitive: bool = field(boolean, versions="5+")


class CreatableTopicResult(Struct):
    name: str = field(string)
    topic_id: bytes = field(uuid, versions="7+", ignorable=True)
    error_code: int = field(int16)
    error_message: str | None = field(string, versions="1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = field(int16, versions="5+", tag=0, ignorable=True)
    num_partitions: int = field(int32, versions="5+", default=-1, ignorable=True)
    replication_factor: int = field(int16, versions="5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(
        array(CreatableTopicConfigs), versions="5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Message, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = field(int32, versions="2+", ignorable=True)
    topics: list[CreatableTopicResult] = field(array(CreatableTopicResult))
