"""What the admin takes and returns: plain values that never change.

Partitions are TopicPartition everywhere; where one is an argument, a (topic, partition) tuple does as well.
Sizes are in bytes, times in milliseconds since 1970 in UTC, as in Kafka's own answers; -1 means "not known".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from klamm.client.arguments import TimeLike
from klamm.client.errors import ClientError
from klamm.client.results import TopicPartition
from klamm.config.rows import ConfigSource as ConfigSource
from klamm.config.rows import ConfigType as ConfigType
from klamm.config.rows import ResourceType as ResourceType

SettingValue: TypeAlias = str | int | float | bool | Sequence[str]
"""The value of a setting as an argument; a list is joined with commas."""

OffsetWord: TypeAlias = Literal[
    "earliest", "latest", "max_timestamp", "earliest_local", "latest_tiered", "earliest_pending_upload"
]
OffsetSpec: TypeAlias = OffsetWord | TimeLike
"""Which offset `list_offsets` is to find: a word, or a time (milliseconds, or an aware datetime)."""


# ---- cluster


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker, with its address for clients."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster. `controller_id` is None while there is no controller."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from first to last, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """What a broker supports: versions of requests by API key, and features by name.

    `finalized_features` are those that the whole cluster has switched on.
    """

    broker_id: int
    apis: Mapping[int, VersionRange]
    supported_features: Mapping[str, VersionRange]
    finalized_features: Mapping[str, VersionRange]


# ---- topics


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. None for partitions or replication factor takes the brokers' default.

    `assignments` names the brokers of every partition instead: {0: [1, 2], 1: [2, 3]}.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, SettingValue] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it was created, or with `validate_only` as it would be. -1 or "" from old brokers."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, ConfigEntry]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition and its replicas. `leader` is None while there is none."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_eligible_leader_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions, by number."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition that is on the way to other brokers. `replicas` are all that it has meanwhile."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


# ---- configurations


class ConfigResource(NamedTuple):
    """Something that has settings: `ConfigResource.topic("orders")`, `.broker(1)`, `.group("billing")`."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        """One broker."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def all_brokers(cls) -> ConfigResource:
        """The settings that apply to all brokers of the cluster."""
        return cls(ResourceType.BROKER, "")

    @classmethod
    def group(cls, name: str) -> ConfigResource:
        """A consumer group."""
        return cls(ResourceType.GROUP, name)

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", " ")
        return f"{kind} {self.name}" if self.name else f"all {kind}s"


class ConfigSynonym(NamedTuple):
    """The value of a setting in one of the places where it can be set, and its name there."""

    name: str
    value: str | None
    source: ConfigSource | int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `value` is None when it is unset, and when it is a secret.

    `synonyms` has the value in every place where it is set, the one in effect first. `type` is None from old
    brokers.
    """

    name: str
    value: str | None
    source: ConfigSource | int
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType | int | None = None
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """True if the setting has its default: it is set neither here nor in a broker's file."""
        return self.source == ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What to change in the settings of one resource; other settings stay as they are.

    `append` and `subtract` are for lists, such as cleanup.policy.
    """

    set: Mapping[str, SettingValue] = field(default_factory=dict)
    delete: Iterable[str] = ()
    append: Mapping[str, SettingValue] = field(default_factory=dict)
    subtract: Mapping[str, SettingValue] = field(default_factory=dict)


# ---- groups


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of all. `state` and `type` are "" from old brokers."""

    group: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, its topics and its partitions (both empty if the group is not one of
    consumers)."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: its state, its members, its assignor, and the broker that coordinates it."""

    group: str
    state: str
    protocol_type: str
    strategy: str
    coordinator: int
    members: tuple[GroupMember, ...]


# ---- storage


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A partition's replica in a log directory. `future`: it is being moved there."""

    size_bytes: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory of a broker. `error` says why it cannot be used; its replicas are not known then."""

    path: str
    error: ClientError | None
    total_bytes: int
    usable_bytes: int
    cordoned: bool
    replicas: Mapping[TopicPartition, ReplicaSize]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """An idempotent producer as a partition remembers it. `transaction_start_offset` is None without one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None
