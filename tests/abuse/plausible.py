"""Valid requests of every API and version that name things which exist, to start mutations from."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from klamm.protocol.compiler import VersionLayout
from klamm.protocol.schema import ArrayType, Field, FixedType, Message, Struct, VariableType
from tests.abuse.calls import batch_of

TOPIC = "plausible"
GROUP = "plausible-group"

_WORDS = {
    "transactional_id": None,
    "client_software_name": "abuser",
    "client_software_version": "1.0",
    "protocol_type": "consumer",
    "resource_name": TOPIC,
    "member_id": "",
    "group_instance_id": None,
    "value": "604800000",
    "key": GROUP,
    "rack_id": "",
    "cluster_id": None,
}
_NUMBERS = {
    "acks": -1,
    "max_wait_ms": 1,
    "timeout_ms": 1000,
    "session_timeout_ms": 6000,
    "rebalance_timeout_ms": 100,
    "transaction_timeout_ms": 1000,
    "max_bytes": 10_000,
    "partition_max_bytes": 10_000,
    "min_bytes": 0,
    "session_id": 0,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "replica_id": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "timestamp": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "resource_type": 2,
    "config_resource_type": 2,
    "endpoint_type": 1,
    "response_partition_limit": 100,
    "retention_time_ms": -1,
}
_NULL_OR_EMPTY = {"assignments", "forgotten_topics_data", "cursor", "replica_state"}
_CONFIG_STRUCTS = {"CreatableTopicConfig", "AlterableConfig"}


def plausible(
    message: type[Message],
    version: int,
    topic_id: bytes,
    random: Random,
    numbers: Mapping[str, int] | None = None,
) -> Message:
    """`numbers` are the values of numeric fields by name, where the usual ones are not meant."""
    return _Filler(VersionLayout(message, version), topic_id, random, numbers or {}).struct(message)


class _Filler:
    def __init__(
        self, layout: VersionLayout, topic_id: bytes, random: Random, numbers: Mapping[str, int]
    ) -> None:
        self._layout = layout
        self._topic_id = topic_id
        self._random = random
        self._numbers = {**_NUMBERS, **numbers}

    def struct(self, struct: type[Struct]) -> Any:
        fields = self._layout.plain_fields(struct) + self._layout.tagged_fields(struct)
        return struct(**{field.name: self._field(struct, field) for field in fields})

    def _field(self, struct: type[Struct], field: Field) -> Any:
        if field.name in _NULL_OR_EMPTY:
            return field.default_value()
        if isinstance(field.type, ArrayType):
            if isinstance(field.type.element, type):
                return [self.struct(field.type.element)]
            return [self._scalar(struct, field, field.type.element)]
        if isinstance(field.type, FixedType | VariableType):
            return self._scalar(struct, field, field.type)
        return self.struct(field.type)

    def _scalar(self, struct: type[Struct], field: Field, type: Any) -> Any:
        if isinstance(type, VariableType):
            if type.name == "string":
                return self._text(struct, field)
            return batch_of(b"value", b"value") if type.name in ("records", "record_set") else b"bytes"
        if type.code == "?":
            return False
        if type.code == "16s":
            return self._topic_id
        return self._numbers.get(field.name, 0)

    def _text(self, struct: type[Struct], field: Field) -> str | None:
        if field.name in _WORDS:
            word = _WORDS[field.name]
            return "" if word is None and not self._layout.is_nullable(field) else word
        if struct.__name__ in _CONFIG_STRUCTS or field.name == "configuration_keys":
            return "retention.ms"
        if field.name == "group_id":
            # A group of its own: members of an earlier request would be waited for.
            return f"{GROUP}-{self._random.getrandbits(32)}"
        if struct.__name__ == "CreatableTopic":
            return f"created-{self._random.getrandbits(32)}"
        if "group" in field.name or field.name == "coordinator_keys":
            return GROUP
        return TOPIC
