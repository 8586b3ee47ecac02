"""Moving replicas to other brokers: add, wait until all are in the ISR, drop, delete last.

While a partition is reassigned its replicas are the target replicas and then those that are to go. It is
complete when all target replicas are in the ISR: then the others leave, and a leader among them is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from klamm.cluster.changes import Change
from klamm.cluster.controller.elections import choose_leader
from klamm.cluster.controller.partitions import PartitionChanges, find_partition, led_by
from klamm.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage
from klamm.config.loading import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition


def reassign_partition(
    image: ClusterImage,
    config: BrokerConfig,
    topic_partition: TopicPartition,
    target: Sequence[int] | None,
    *,
    controller_epoch: int,
    allow_replication_factor_change: bool = True,
) -> Change:
    """Move a partition to the `target` replicas, also if it is on the way elsewhere. None cancels."""
    name, index = topic_partition
    partition = find_partition(image, name, index)
    original = _original(partition)
    if target is None:
        if not partition.is_reassigned:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being reassigned"
            )
        target = original
    else:
        _check_target(image, topic_partition, target)
        if len(target) != len(original) and not allow_replication_factor_change:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{topic_partition} has {len(original)} replicas and would have {len(target)}",
            )
    after = complete_if_in_sync(image.brokers, _begun(image, topic_partition, original, tuple(target)))
    changes = PartitionChanges(image, config, controller_epoch)
    changes.put(name, index, after)
    return changes.change()


def _original(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas to which a cancelled reassignment returns.

    Their first order is not kept; the replicas that were to stay come in the target's order.
    """
    return tuple(each for each in partition.replicas if each not in partition.adding_replicas)


def _check_target(image: ClusterImage, topic_partition: TopicPartition, target: Sequence[int]) -> None:
    unknown = [broker_id for broker_id in target if broker_id not in image.brokers]
    if not target:
        problem = "no replicas are given"
    elif len(set(target)) != len(target):
        problem = f"a broker is named twice in {list(target)}"
    elif unknown:
        problem = f"these brokers are not there: {unknown}"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the reassignment of {topic_partition} is refused: {problem}"
    )


def _begun(
    image: ClusterImage, topic_partition: TopicPartition, original: tuple[int, ...], target: tuple[int, ...]
) -> PartitionImage:
    """On the way from `original` to `target`. Replicas of an earlier target are dropped."""
    partition = find_partition(image, *topic_partition)
    removing = tuple(each for each in original if each not in target)
    replicas = target + removing
    after = partition._replace(
        replicas=replicas,
        isr=tuple(each for each in partition.isr if each in replicas),
        adding_replicas=tuple(each for each in target if each not in original),
        removing_replicas=removing,
    )
    if not after.isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the reassignment of {topic_partition} is refused: only the brokers {list(partition.isr)}, "
            "which it drops, are in sync",
        )
    return _with_leader_of_isr(image.brokers, after)


def complete_if_in_sync(brokers: Mapping[int, BrokerImage], partition: PartitionImage) -> PartitionImage:
    """The partition at the end of its reassignment, if all target replicas are in the ISR."""
    if not partition.is_reassigned:
        return partition
    target = tuple(each for each in partition.replicas if each not in partition.removing_replicas)
    if not set(target) <= set(partition.isr):
        return partition
    after = partition._replace(
        replicas=target,
        isr=tuple(each for each in partition.isr if each in target),
        adding_replicas=(),
        removing_replicas=(),
    )
    if after.leader not in after.isr and choose_leader(brokers, after) == NO_LEADER:
        return partition  # the leader stays until another can take over
    return _with_leader_of_isr(brokers, after)


def complete_reassignments(image: ClusterImage, config: BrokerConfig, *, controller_epoch: int) -> Change:
    """End the reassignments that have waited for nothing but a target replica that can lead."""
    changes = PartitionChanges(image, config, controller_epoch)
    for topic_partition, partition in reassigned_partitions(image):
        changes.put(*topic_partition, complete_if_in_sync(image.brokers, partition))
    return changes.change()


def _with_leader_of_isr(brokers: Mapping[int, BrokerImage], partition: PartitionImage) -> PartitionImage:
    if partition.leader == NO_LEADER or partition.leader in partition.isr:
        return partition
    return led_by(partition, choose_leader(brokers, partition))


def reassigned_partitions(image: ClusterImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The reassignments that are under way."""
    for name in sorted(image.topics):
        for index, partition in enumerate(image.topics[name].partitions):
            if partition.is_reassigned:
                yield TopicPartition(name, index), partition
