"""The APIs that Klamm speaks: their keys, the versions it advertises, and where their messages are declared.

A broker advertises those it has a handler for; the client uses the others against brokers that do.

The advertised range is that of a Kafka 4.3 broker. It can differ from the range that the messages are
declared for: Produce advertises 0-2 because old librdkafka looks there for its compression codecs, yet a
request in these versions is refused; version 6 of InitProducerId is unstable and not advertised.
Inter-broker APIs are not advertised to clients. Those that Kafka 4 has no more (LeaderAndIsr and its like)
have the newest version that Kafka had.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import NamedTuple

from klamm.protocol.schema import Message, VersionRange


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    ALTER_PARTITION = 56
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def title(self) -> str:
        """The name as Kafka writes it: OffsetForLeaderEpoch."""
        return self.name.title().replace("_", "")


class ApiSpec(NamedTuple):
    """One API. `min_version` to `max_version` is advertised, `accepted` is what may be sent.

    An inter-broker API is for brokers of the cluster: clients are not told of it, and may not call it.
    """

    key: ApiKey
    min_version: int
    max_version: int
    flexible_since: int | None
    is_inter_broker: bool = False

    @property
    def accepted(self) -> VersionRange:
        first, last = self.request.__valid_versions__
        return VersionRange(max(first, self.min_version), min(last, self.max_version))

    @property
    def request(self) -> type[Message]:
        """The class of the request. Its module is imported on the first call."""
        return self._message("Request")

    @property
    def response(self) -> type[Message]:
        return self._message("Response")

    def _message(self, suffix: str) -> type[Message]:
        module = import_module(f"klamm.protocol.messages.k{self.key.value:02d}_{self.key.name.lower()}")
        message: type[Message] = getattr(module, self.key.title + suffix)
        return message


API_VERSIONS: dict[ApiKey, ApiSpec] = {
    spec.key: spec
    for spec in (
        ApiSpec(ApiKey.PRODUCE, 0, 13, flexible_since=9),
        ApiSpec(ApiKey.FETCH, 4, 18, flexible_since=12),
        ApiSpec(ApiKey.LIST_OFFSETS, 1, 11, flexible_since=6),
        ApiSpec(ApiKey.METADATA, 0, 13, flexible_since=9),
        ApiSpec(ApiKey.LEADER_AND_ISR, 7, 7, flexible_since=4, is_inter_broker=True),
        ApiSpec(ApiKey.STOP_REPLICA, 4, 4, flexible_since=2, is_inter_broker=True),
        ApiSpec(ApiKey.UPDATE_METADATA, 8, 8, flexible_since=6, is_inter_broker=True),
        ApiSpec(ApiKey.CONTROLLED_SHUTDOWN, 3, 3, flexible_since=3, is_inter_broker=True),
        ApiSpec(ApiKey.OFFSET_COMMIT, 2, 10, flexible_since=8),
        ApiSpec(ApiKey.OFFSET_FETCH, 1, 10, flexible_since=6),
        ApiSpec(ApiKey.FIND_COORDINATOR, 0, 6, flexible_since=3),
        ApiSpec(ApiKey.JOIN_GROUP, 0, 9, flexible_since=6),
        ApiSpec(ApiKey.HEARTBEAT, 0, 4, flexible_since=4),
        ApiSpec(ApiKey.LEAVE_GROUP, 0, 5, flexible_since=4),
        ApiSpec(ApiKey.SYNC_GROUP, 0, 5, flexible_since=4),
        ApiSpec(ApiKey.DESCRIBE_GROUPS, 0, 6, flexible_since=5),
        ApiSpec(ApiKey.LIST_GROUPS, 0, 5, flexible_since=3),
        ApiSpec(ApiKey.SASL_HANDSHAKE, 0, 1, flexible_since=None),
        ApiSpec(ApiKey.API_VERSIONS, 0, 4, flexible_since=3),
        ApiSpec(ApiKey.CREATE_TOPICS, 2, 7, flexible_since=5),
        ApiSpec(ApiKey.DELETE_TOPICS, 1, 6, flexible_since=4),
        ApiSpec(ApiKey.DELETE_RECORDS, 0, 2, flexible_since=2),
        ApiSpec(ApiKey.INIT_PRODUCER_ID, 0, 5, flexible_since=2),
        ApiSpec(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, flexible_since=4),
        ApiSpec(ApiKey.DESCRIBE_ACLS, 1, 3, flexible_since=2),
        ApiSpec(ApiKey.CREATE_ACLS, 1, 3, flexible_since=2),
        ApiSpec(ApiKey.DELETE_ACLS, 1, 3, flexible_since=2),
        ApiSpec(ApiKey.DESCRIBE_CONFIGS, 1, 4, flexible_since=4),
        ApiSpec(ApiKey.ALTER_CONFIGS, 0, 2, flexible_since=2),
        ApiSpec(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, flexible_since=2),
        ApiSpec(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, flexible_since=2),
        ApiSpec(ApiKey.SASL_AUTHENTICATE, 0, 2, flexible_since=2),
        ApiSpec(ApiKey.CREATE_PARTITIONS, 0, 3, flexible_since=2),
        ApiSpec(ApiKey.DELETE_GROUPS, 0, 2, flexible_since=2),
        ApiSpec(ApiKey.ELECT_LEADERS, 0, 2, flexible_since=2),
        ApiSpec(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, flexible_since=1),
        ApiSpec(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, flexible_since=0),
        ApiSpec(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.OFFSET_DELETE, 0, 0, flexible_since=None),
        ApiSpec(ApiKey.ALTER_PARTITION, 2, 3, flexible_since=0, is_inter_broker=True),
        ApiSpec(ApiKey.ENVELOPE, 0, 0, flexible_since=0, is_inter_broker=True),
        ApiSpec(ApiKey.DESCRIBE_CLUSTER, 0, 2, flexible_since=0),
        ApiSpec(ApiKey.DESCRIBE_PRODUCERS, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.UNREGISTER_BROKER, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, flexible_since=0, is_inter_broker=True),
        ApiSpec(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, flexible_since=0),
        ApiSpec(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, flexible_since=0),
        ApiSpec(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, flexible_since=0, is_inter_broker=True),
        ApiSpec(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, flexible_since=0),
        ApiSpec(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, flexible_since=0),
        ApiSpec(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, flexible_since=0),
        ApiSpec(ApiKey.SHARE_FETCH, 1, 2, flexible_since=0),
        ApiSpec(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, flexible_since=0),
        ApiSpec(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, flexible_since=0),
        ApiSpec(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, flexible_since=0),
        ApiSpec(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, flexible_since=0),
    )
}

_NEVER_FLEXIBLE = 1 << 15

FLEXIBLE_SINCE: dict[int, int] = {
    key.value: _NEVER_FLEXIBLE if spec.flexible_since is None else spec.flexible_since
    for key, spec in API_VERSIONS.items()
}
"""The first flexible version by API key; looked up once per request, hence plain integers."""


def response_header_version(key: int, version: int) -> int:
    """ApiVersions always has header 0: a client reads it before it knows the versions of the broker."""
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= FLEXIBLE_SINCE.get(key, _NEVER_FLEXIBLE) else 0
