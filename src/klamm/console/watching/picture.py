"""The newest that the console knows of a cluster, as values that do not change. Without IO.

What a broker has not told for a while stays in the picture, with the time of its last answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from klamm.client.admin.types import (
    GroupMember,
    LogDirectory,
    PartitionDescription,
    TopicDescription,
)
from klamm.client.results import TopicPartition
from klamm.console.watching.pace import Pace

STABLE = "Stable"
EMPTY = "Empty"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker. One that is not in the cluster, but holds replicas, is `gone`: it has no address."""

    id: int
    address: str
    rack: str | None
    is_controller: bool
    is_gone: bool
    silent_since_ms: int | None
    """Since when it has not answered the console; None while it answers."""
    leaders: int
    replicas: int
    directories: tuple[LogDirectory, ...] | None

    @property
    def size_bytes(self) -> int | None:
        if self.directories is None:
            return None
        return sum(one.size_bytes for each in self.directories for one in each.replicas.values())

    @property
    def total_bytes(self) -> int | None:
        return _sum_of(self.directories, "total_bytes")

    @property
    def usable_bytes(self) -> int | None:
        return _sum_of(self.directories, "usable_bytes")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic, summed over its partitions."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    """Of each partition; the most if they differ."""
    records: int | None
    """Between the first and the last offset. A compacted topic has fewer."""
    size_bytes: int | None
    """On all brokers together."""
    lag: int | None
    """Of all groups together; None without a group."""
    offline: int
    under_replicated: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group with its committed offsets. `members` are None until they are known."""

    name: str
    state: str
    type: str
    protocol_type: str
    coordinator: int
    offsets: Mapping[TopicPartition, int]
    lag: int | None
    """None without a committed offset."""
    members: tuple[GroupMember, ...] | None
    strategy: str
    pace: Pace

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.offsets})


@dataclass(frozen=True, slots=True)
class Picture:
    """A cluster at one time."""

    taken_ms: int
    cluster_id: str
    controller_id: int | None
    brokers: Mapping[int, BrokerState]
    descriptions: Mapping[str, TopicDescription]
    topics: Mapping[str, TopicState]
    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, Mapping[int, int]]
    """Bytes by partition and broker."""
    groups: Mapping[str, GroupState]
    problem: str = ""
    """Why the latest look failed as a whole; the picture is older then."""
    consumers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The groups that have committed offsets of a topic."""

    @property
    def offline(self) -> int:
        return sum(topic.offline for topic in self.topics.values())

    @property
    def under_replicated(self) -> int:
        return sum(topic.under_replicated for topic in self.topics.values())

    @property
    def partitions(self) -> int:
        return sum(topic.partitions for topic in self.topics.values())


def is_under_replicated(partition: PartitionDescription) -> bool:
    return len(partition.in_sync_replicas) < len(partition.replicas)


def lag_of(offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int | None:
    """How far offsets are behind the ends together. Partitions whose end is not known count nothing."""
    known = [max(0, ends[one] - offset) for one, offset in offsets.items() if one in ends]
    return sum(known) if known else None


def sizes_by_partition(
    directories: Mapping[int, Sequence[LogDirectory]],
) -> dict[TopicPartition, dict[int, int]]:
    found: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for broker, listed in directories.items():
        for directory in listed:
            for partition, replica in directory.replicas.items():
                if not replica.future:
                    found[partition][broker] = replica.size_bytes
    return dict(found)


def summed_topics(
    descriptions: Mapping[str, TopicDescription],
    ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, Mapping[int, int]],
    groups: Mapping[str, GroupState],
) -> dict[str, TopicState]:
    lags: dict[str, int] = defaultdict(int)
    for group in groups.values():
        for partition, offset in group.offsets.items():
            if partition in ends:
                lags[partition.topic] += max(0, ends[partition] - offset)
    found = {}
    for name, topic in descriptions.items():
        records, size, knows_records, knows_size = 0, 0, False, False
        offline = under = 0
        for one in topic.partitions:
            partition = TopicPartition(name, one.partition)
            if partition in ends and partition in starts:
                records += max(0, ends[partition] - starts[partition])
                knows_records = True
            if partition in sizes:
                size += sum(sizes[partition].values())
                knows_size = True
            offline += one.leader is None
            under += is_under_replicated(one)
        found[name] = TopicState(
            name,
            topic.internal,
            len(topic.partitions),
            max((len(one.replicas) for one in topic.partitions), default=0),
            records if knows_records else None,
            size if knows_size else None,
            lags.get(name),
            offline,
            under,
        )
    return found


def consumers_of(groups: Mapping[str, GroupState]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, group in sorted(groups.items()):
        for topic in group.topics:
            found[topic].append(name)
    return dict(found)


def led_and_held(descriptions: Mapping[str, TopicDescription]) -> tuple[Counter[int], Counter[int]]:
    """How many partitions each broker leads, and how many replicas it holds."""
    led: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for topic in descriptions.values():
        for one in topic.partitions:
            if one.leader is not None:
                led[one.leader] += 1
            held.update(one.replicas)
    return led, held


def _sum_of(directories: Sequence[LogDirectory] | None, name: str) -> int | None:
    """The sum over directories on disks of their own; directories of one size and room share a disk."""
    if directories is None:
        return None
    disks = {(one.total_bytes, one.usable_bytes): getattr(one, name) for one in directories}
    known = [value for value in disks.values() if value >= 0]
    return sum(known) if known else None
