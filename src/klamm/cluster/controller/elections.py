"""Who leads a partition: elections, and when leaders should go back to their preferred replicas.

A new leader is the next replica in the order of the assignment that is in the ISR, alive and not offline. A
broker that is shutting down gets no leadership. If none can lead, an eligible replica does (eligible.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from klamm.cluster.changes import Change
from klamm.cluster.controller.partitions import PartitionChanges, find_partition, led_by
from klamm.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage
from klamm.config.loading import BrokerConfig
from klamm.config.topic_keys import topic_value
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition

UNCLEAN_KEY = "unclean.leader.election.enable"

# Kafka's default: leaders go back when a broker leads so much less than it should.
MAX_IMBALANCE_PERCENT = 10


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Elections(NamedTuple):
    """What an ElectLeaders request changes, and the error of each partition that was named."""

    change: Change
    results: list[tuple[TopicPartition, KafkaError | None]]


def may_lead(brokers: Mapping[int, BrokerImage], partition: PartitionImage, broker_id: int) -> bool:
    broker = brokers.get(broker_id)
    return broker is not None and not broker.is_shutting_down and broker_id not in partition.offline_replicas


def choose_leader(brokers: Mapping[int, BrokerImage], partition: PartitionImage) -> int:
    """A leader from the ISR, or NO_LEADER."""
    for broker_id in partition.replicas:
        if broker_id in partition.isr and may_lead(brokers, partition, broker_id):
            return broker_id
    return NO_LEADER


def elect(
    brokers: Mapping[int, BrokerImage], partition: PartitionImage, *, is_unclean_allowed: bool
) -> PartitionImage:
    """With a new leader. If no member of the ISR can lead, an eligible replica does, or, if an unclean
    election is allowed, any replica that is alive: it becomes the only member of the ISR. If there is none,
    the ISR stays, and there is no leader."""
    leader = choose_leader(brokers, partition)
    if leader == NO_LEADER:
        others = (*partition.eligible_replicas, *(partition.replicas if is_unclean_allowed else ()))
        leader = next((each for each in others if may_lead(brokers, partition, each)), NO_LEADER)
        if leader != NO_LEADER:
            partition = partition._replace(isr=(leader,))
    if leader == NO_LEADER and partition.leader == NO_LEADER:
        return partition
    return led_by(partition, leader)


def is_unclean_allowed(config: BrokerConfig, topic: TopicImage) -> bool:
    return bool(topic_value(config, topic.config, UNCLEAN_KEY))


def elect_leaders(
    image: ClusterImage,
    config: BrokerConfig,
    election_type: ElectionType,
    which: Iterable[TopicPartition] | None,
    *,
    controller_epoch: int,
) -> Elections:
    """None for all partitions; those that need no election are then left out of the results."""
    elect_one = _elect_preferred if election_type is ElectionType.PREFERRED else _elect_unclean
    changes = PartitionChanges(image, config, controller_epoch)
    results: list[tuple[TopicPartition, KafkaError | None]] = []
    for topic_partition in all_partitions(image) if which is None else which:
        try:
            partition = find_partition(image, *topic_partition)
            changes.put(*topic_partition, elect_one(image.brokers, topic_partition, partition))
            results.append((topic_partition, None))
        except KafkaError as error:
            if which is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append((topic_partition, error.as_result()))
    return Elections(changes.change(), results)


def _elect_preferred(
    brokers: Mapping[int, BrokerImage], topic_partition: TopicPartition, partition: PartitionImage
) -> PartitionImage:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, f"{topic_partition} is led by its preferred replica already"
        )
    if preferred not in partition.isr or not may_lead(brokers, partition, preferred):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {preferred}, the preferred replica of {topic_partition}, is not alive or not in sync",
        )
    return led_by(partition, preferred)


def _elect_unclean(
    brokers: Mapping[int, BrokerImage], topic_partition: TopicPartition, partition: PartitionImage
) -> PartitionImage:
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{topic_partition} has a leader")
    after = elect(brokers, partition, is_unclean_allowed=True)
    if after.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {topic_partition} is alive"
        )
    return after


def all_partitions(image: ClusterImage) -> Iterable[TopicPartition]:
    for name in sorted(image.topics):
        for index in range(len(image.topics[name].partitions)):
            yield TopicPartition(name, index)


def imbalanced_partitions(
    image: ClusterImage, max_imbalance_percent: int = MAX_IMBALANCE_PERCENT
) -> list[TopicPartition]:
    """Partitions whose leadership should go back to the preferred replica, which can take it.

    They are those of brokers that lead too few of the partitions in which they are preferred.
    """
    preferred_count: dict[int, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for topic_partition in all_partitions(image):
        partition = image.topics[topic_partition.topic].partitions[topic_partition.partition]
        preferred = partition.replicas[0]
        preferred_count[preferred] = preferred_count.get(preferred, 0) + 1
        if partition.leader != preferred:
            elsewhere.setdefault(preferred, []).append(topic_partition)
    return [
        topic_partition
        for broker_id, led_elsewhere in sorted(elsewhere.items())
        if 100 * len(led_elsewhere) > max_imbalance_percent * preferred_count[broker_id]
        for topic_partition in led_elsewhere
        if _can_go_back(image, topic_partition)
    ]


def _can_go_back(image: ClusterImage, topic_partition: TopicPartition) -> bool:
    partition = image.topics[topic_partition.topic].partitions[topic_partition.partition]
    preferred = partition.replicas[0]
    is_in_sync = preferred in partition.isr and not partition.is_reassigned
    return is_in_sync and may_lead(image.brokers, partition, preferred)
