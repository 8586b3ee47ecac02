"""The contract of the suites: what a Kafka client must do, whatever language it is written in.

Each client has an adapter that fulfils `Client`; the suites are written once, against this, and run for every
client that can do what a test is about. An adapter translates and nothing more: it must not retry, sort or
repair, or the suites would test the adapter. Failures that the broker reports arrive as `ClientError` with
Kafka's error code, so that a test can ask for the very code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_SECONDS = 20.0

# What the members of the suites' groups ask for: quick to notice a change, and six seconds until one that
# fell silent is dropped, which is the shortest that a broker allows by default.
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 300
REBALANCE_TIMEOUT_MS = 10_000
METADATA_MAX_AGE_MS = 1_000

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

# Parts of the contract that not every client has.
SETS_TIMESTAMPS = "sets timestamps"  # and tells which kind of timestamp a record has
TELLS_OFFSETS = "tells offsets"  # the producer says which offsets its records got
COMMITS_ON_DEMAND = "commits on demand"
IDEMPOTENCE = "idempotence"
STATIC_MEMBERS = "static members"
DELETES_GROUPS = "deletes groups"
DELETES_GROUP_OFFSETS = "deletes group offsets"
COMMON_FEATURES = frozenset({SETS_TIMESTAMPS, TELLS_OFFSETS, COMMITS_ON_DEMAND, IDEMPOTENCE})


class ClientError(Exception):
    """The broker refused; `code` is Kafka's error code (-1 when the client does not tell)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Record:
    """A record to produce. Without a timestamp the client takes the present."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Received:
    """A record as a consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int
    timestamp_type: str

    def content(self) -> Record:
        return Record(self.value, self.key, self.headers, self.timestamp_ms)


@dataclass(frozen=True)
class GroupDescription:
    """A group as the broker describes it: the state, and the partitions of each member by its client id."""

    state: str
    members: Mapping[str, frozenset[int]] = field(default_factory=dict)


class Handover(NamedTuple):
    """Partitions that a member took or gave up, and when, in milliseconds since 1970."""

    time_ms: int
    is_taken: bool
    partitions: frozenset[int]


class Member(ABC):
    """One consumer in a group, polling in the background from the moment it was made."""

    @abstractmethod
    def assignment(self) -> frozenset[int]:
        """The partitions it holds now."""

    @abstractmethod
    def received(self) -> Sequence[Received]:
        """All it has received so far, in order."""

    @abstractmethod
    def assignments_seen(self) -> int:
        """How often a rebalance ended for it. Clients that do not tell what they were given count as well."""

    @abstractmethod
    def revoked(self) -> frozenset[int]:
        """Every partition that was ever taken from it while it was a member."""

    @abstractmethod
    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit these offsets by partition, or the positions it has reached, and wait for the broker."""

    @abstractmethod
    def leave(self) -> None:
        """Close the consumer as a program does that ends well."""


class Client(ABC):
    """A Kafka client. `features` names the parts of the contract that it has at all."""

    name: ClassVar[str]
    features: ClassVar[frozenset[str]]
    strategies: ClassVar[tuple[str, ...]] = ()
    codecs: ClassVar[tuple[str, ...]] = CODECS

    @abstractmethod
    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Produce in order and return the offsets the broker gave, once all are acknowledged."""

    @abstractmethod
    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        """Read `count` records from an offset on, without a group."""

    @abstractmethod
    def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        strategy: str,
        instance_id: str | None = None,
    ) -> Member:
        """Start a consumer in a group. It starts at the beginning where nothing is committed."""

    def close(self) -> None:  # noqa: B027  (most adapters hold nothing)
        """Give up what the adapter holds."""


class AdminClient(Client):
    """A client that can administer, too."""

    @abstractmethod
    def list_topics(self) -> set[str]: ...

    @abstractmethod
    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def partition_count(self, topic: str) -> int: ...

    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...

    @abstractmethod
    def topic_config(self, topic: str) -> dict[str, str | None]: ...

    @abstractmethod
    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the records before an offset and return the low watermark."""

    @abstractmethod
    def watermarks(self, topic: str, partition: int) -> tuple[int, int]: ...

    @abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None: ...

    @abstractmethod
    def list_groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> GroupDescription: ...

    @abstractmethod
    def delete_group(self, group: str) -> None: ...

    @abstractmethod
    def committed(self, group: str, topic: str, partition: int) -> int | None: ...

    @abstractmethod
    def delete_group_offsets(self, group: str, topic: str, partition: int) -> None: ...


def values(records: Iterable[Received]) -> list[bytes | None]:
    return [record.value for record in records]
