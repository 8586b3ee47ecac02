"""The offsets a group has committed, and when they have been kept for long enough."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from klamm.groups.events import GroupState
from klamm.groups.group import Group
from klamm.model.ids import ZERO_TOPIC_ID, TopicPartition

NO_TIMESTAMP = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Set only by OffsetCommit v2 to v4, whose senders chose the retention themselves."""
    topic_id: bytes = ZERO_TOPIC_ID
    """Zero if it is not known: in records of Kafka, and of senders that chose the retention."""

    def is_for(self, topic_id: bytes) -> bool:
        """False for the offset of an earlier topic of the same name. A topic that is gone has the zero id."""
        return self.topic_id in (ZERO_TOPIC_ID, topic_id)


class OffsetTable:
    """By topic, because whole topics are asked for and whole topics are deleted."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, CommittedOffset]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def __bool__(self) -> bool:
        """Asked after every record; the length would be a sum over all topics."""
        return bool(self._by_topic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetTable) and self._by_topic == other._by_topic

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for topic, partitions in self._by_topic.items():
            for partition, committed in partitions.items():
                yield TopicPartition(topic, partition), committed

    @property
    def topics(self) -> list[str]:
        return list(self._by_topic)

    @property
    def topic_count(self) -> int:
        return len(self._by_topic)

    def topics_among(self, names: Collection[str]) -> list[str]:
        """Those of `names`, best a set or the keys of a dictionary, that have offsets."""
        if len(names) < len(self._by_topic):
            return [name for name in names if name in self._by_topic]
        return [topic for topic in self._by_topic if topic in names]

    def partitions_of(self, topic: str) -> list[int]:
        return list(self._by_topic.get(topic, ()))

    def partitions_for(self, topic: str, topic_id: bytes) -> list[int]:
        """As `partitions_of`, without those of an earlier topic of the same name."""
        partitions = self._by_topic.get(topic, {})
        return [partition for partition, committed in partitions.items() if committed.is_for(topic_id)]

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        self._by_topic.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        partitions = self._by_topic.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self._by_topic[topic]


def expired_partitions(
    offsets: OffsetTable, group: Group, state_timestamp_ms: int, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """The partitions whose committed offsets have expired.

    A group that had members keeps its offsets for the retention time after the last one left; one that
    never had any, after the commit; a stable group of consumers, those of topics it no longer reads, after
    the commit. While a group rebalances nothing expires.
    """
    is_empty = group.state is GroupState.EMPTY
    if not is_empty and (group.state is not GroupState.STABLE or not group.is_consumer_group):
        return []
    counts_from_empty = is_empty and group.protocol_type is not None and state_timestamp_ms != NO_TIMESTAMP
    subscribed = group.subscribed_topics()
    if subscribed is None:
        return []
    expired = []
    for topic in offsets.topics:
        if topic in subscribed:
            continue
        for partition in offsets.partitions_of(topic):
            committed = offsets.get(topic, partition)
            assert committed is not None
            kept_from_ms = state_timestamp_ms if counts_from_empty else committed.commit_timestamp_ms
            deadline_ms = kept_from_ms + retention_ms
            if committed.expire_timestamp_ms != NO_TIMESTAMP:
                deadline_ms = committed.expire_timestamp_ms
            if now_ms >= deadline_ms:
                expired.append(TopicPartition(topic, partition))
    return expired
