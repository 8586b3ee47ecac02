"""What the client knows of the cluster: brokers, topics, partitions and their leaders. A core.

Answers are merged: topics that were not asked for stay as they were. The leader epoch of a partition never
decreases while its topic stays the same, so a broker that lags behind cannot send us to an old leader. A
topic with another id than before was deleted and created again, and all that was known of it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.client.network.addresses import BrokerAddress
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID, TopicPartition
from klamm.protocol.messages.k03_metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_LEADER = -1


class PartitionMetadata(NamedTuple):
    """One partition. `leader` is -1 while it has none."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE


class TopicMetadata(NamedTuple):
    """One topic. `partitions[n]` is partition n; empty if `error` says that the topic does not exist."""

    name: str
    topic_id: bytes
    internal: bool
    error: ErrorCode
    partitions: tuple[PartitionMetadata, ...]

    @property
    def exists(self) -> bool:
        return bool(self.partitions)

    @property
    def has_leader(self) -> bool:
        """True if at least one partition has a leader. While leaders are being elected there may be none."""
        return any(each.leader >= 0 for each in self.partitions)


@dataclass(slots=True)
class MetadataChange:
    """What an answer changed. A recreated topic is also in `leaders`, with all its partitions."""

    added: set[str] = field(default_factory=set)
    """Topics that were not known before, or did not exist."""
    removed: set[str] = field(default_factory=set)
    """Topics that existed and do not any more."""
    recreated: set[str] = field(default_factory=set)
    """Topics that were deleted and created again."""
    grown: set[str] = field(default_factory=set)
    """Topics with more partitions than before."""
    leaders: set[TopicPartition] = field(default_factory=set)
    """Partitions with another leader or another leader epoch."""
    brokers: bool = False
    """True if brokers joined, left or changed their address."""

    def __bool__(self) -> bool:
        return bool(
            self.added or self.removed or self.recreated or self.grown or self.leaders or self.brokers
        )


class MetadataCache:
    """The cluster as of the latest answers."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.updated_at: float | None = None
        """When the latest answer was applied, on the caller's clock."""
        self._names: dict[bytes, str] = {}

    def leader(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Node id and epoch of a partition's leader; None if the partition is not known or has no leader."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        found = known.partitions[partition]
        return (found.leader, found.leader_epoch) if found.leader >= 0 else None

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def apply(self, response: MetadataResponse, now: float, *, all_topics: bool = False) -> MetadataChange:
        """Merge an answer. With `all_topics`, topics that it does not name do not exist any more."""
        change = MetadataChange()
        self.updated_at = now
        self.cluster_id = response.cluster_id if response.cluster_id is not None else self.cluster_id
        self.controller_id = response.controller_id
        self._take_brokers(response, change)
        named = set()
        for topic in response.topics:
            name = topic.name if topic.name is not None else self._names.get(topic.topic_id)
            if name is not None:
                named.add(name)
                self._take_topic(name, topic, change)
        if all_topics:
            for name in [each for each in self.topics if each not in named]:
                self._forget(name, change)
        return change

    def learn_leader(
        self, partition: TopicPartition, node_id: int, epoch: int, endpoint: BrokerAddress | None = None
    ) -> bool:
        """Take over the leader that a Produce or Fetch answer named; returns whether it is a new one."""
        known = self.partition(*partition)
        if known is None or node_id < 0 or epoch <= known.leader_epoch:
            return False
        if endpoint is not None:
            self.brokers[node_id] = endpoint
        if node_id not in self.brokers:
            return False
        topic = self.topics[partition.topic]
        partitions = list(topic.partitions)
        partitions[partition.partition] = known._replace(
            leader=node_id, leader_epoch=epoch, error=ErrorCode.NONE
        )
        self.topics[partition.topic] = topic._replace(partitions=tuple(partitions))
        return True

    def learn_broker(self, address: BrokerAddress) -> None:
        """Take over the address of a broker that another answer named."""
        self.brokers[address.node_id] = address

    def forget_topics(self, names: Iterable[str]) -> None:
        """Drop topics that are not refreshed any more, so that no stale metadata are used."""
        for name in names:
            self._forget(name, MetadataChange())

    def forget_brokers(self) -> None:
        self.brokers.clear()

    # ---- merging

    def _take_brokers(self, response: MetadataResponse, change: MetadataChange) -> None:
        if not response.brokers:
            return  # a broker that is just starting knows no others; keep the brokers that we know
        brokers = {
            each.node_id: BrokerAddress(each.node_id, each.host, each.port, each.rack)
            for each in response.brokers
        }
        change.brokers = brokers != self.brokers
        self.brokers = brokers

    def _take_topic(self, name: str, topic: MetadataResponseTopic, change: MetadataChange) -> None:
        before = self.topics.get(name)
        error = _error(topic.error_code)
        if before is not None and before.exists and error.retriable and error not in _GONE:
            self.topics[name] = before._replace(error=error)  # a retriable error; keep the partitions
            return
        same = before is not None and before.topic_id == topic.topic_id
        partitions = tuple(
            _merged(each, before.partitions if same and before is not None else ())
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        )
        if [each.index for each in partitions] != list(range(len(partitions))):
            # Partition numbers with gaps are a bug of the broker: `partitions[n]` would not be partition n.
            partitions = ()
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        after = TopicMetadata(name, bytes(topic.topic_id), topic.is_internal, error, partitions)
        if before is not None and before.topic_id != after.topic_id:
            self._names.pop(before.topic_id, None)
        if after.topic_id != ZERO_TOPIC_ID:
            self._names[after.topic_id] = name
        self.topics[name] = after
        _compare(before, after, change)

    def _forget(self, name: str, change: MetadataChange) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        if self._names.get(topic.topic_id) == name:
            del self._names[topic.topic_id]
        if topic.exists:
            change.removed.add(name)


def _merged(partition: MetadataResponsePartition, before: tuple[PartitionMetadata, ...]) -> PartitionMetadata:
    after = PartitionMetadata(
        partition.partition_index,
        partition.leader_id,
        partition.leader_epoch,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        _error(partition.error_code),
    )
    index = partition.partition_index
    known = before[index] if 0 <= index < len(before) else None
    return known if known is not None and -1 < after.leader_epoch < known.leader_epoch else after


def _compare(before: TopicMetadata | None, after: TopicMetadata, change: MetadataChange) -> None:
    name = after.name
    if before is None or not before.exists:
        if after.exists:
            change.added.add(name)
            change.leaders.update(TopicPartition(name, each.index) for each in after.partitions)
        return
    if not after.exists:
        if after.error in _GONE:
            change.removed.add(name)
        return
    if ZERO_TOPIC_ID not in (before.topic_id, after.topic_id) and before.topic_id != after.topic_id:
        change.recreated.add(name)
        change.leaders.update(TopicPartition(name, each.index) for each in after.partitions)
        return
    if len(after.partitions) > len(before.partitions):
        change.grown.add(name)
    for each in after.partitions:
        known = before.partitions[each.index] if each.index < len(before.partitions) else None
        if known is None or (known.leader, known.leader_epoch) != (each.leader, each.leader_epoch):
            change.leaders.add(TopicPartition(name, each.index))


_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
