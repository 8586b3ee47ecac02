"""Replicas that their broker cannot use, because a log directory has failed or has no room; and their return.

Such a broker stays in the cluster and serves its other replicas. An offline replica leaves the ISR if the ISR
has others, and does not lead. It is asked for again when its broker registers anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from klamm.cluster.changes import Change
from klamm.cluster.controller.brokers import check_broker_epoch
from klamm.cluster.controller.elections import elect, is_unclean_allowed
from klamm.cluster.controller.partitions import PartitionChanges
from klamm.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from klamm.config.loading import BrokerConfig

ReplicaKey: TypeAlias = tuple[bytes, int]
"""(topic id, partition) of a replica on a broker that is known."""


def replicas_changed(
    image: ClusterImage,
    config: BrokerConfig,
    broker_id: int,
    broker_epoch: int,
    *,
    offline: Collection[ReplicaKey],
    online: Collection[ReplicaKey],
    controller_epoch: int,
) -> Change:
    """What follows when a broker says which of its replicas it cannot use, and which it can use again."""
    check_broker_epoch(image, broker_id, broker_epoch)
    changes = PartitionChanges(image, config, controller_epoch)
    for keys, is_offline in ((offline, True), (online, False)):
        for topic_id, index in keys:
            topic = image.topics.get(image.topic_names_by_id.get(topic_id, ""))
            if topic is None or not 0 <= index < len(topic.partitions):
                continue  # it was deleted meanwhile
            before = topic.partitions[index]
            if broker_id not in before.replicas or is_offline == (broker_id in before.offline_replicas):
                continue
            after = _without(image, before, broker_id) if is_offline else _with(before, broker_id)
            if after.leader in (NO_LEADER, *after.offline_replicas):
                after = elect(image.brokers, after, is_unclean_allowed=is_unclean_allowed(config, topic))
            changes.put(topic.name, index, after)
    return changes.change()


def _without(image: ClusterImage, partition: PartitionImage, broker_id: int) -> PartitionImage:
    # In the order of the replicas, as brokers hear of them: the images of all are the same.
    offline = tuple(
        each for each in partition.replicas if each == broker_id or each in partition.offline_replicas
    )
    left = tuple(each for each in partition.isr if each in image.brokers and each not in offline)
    # If nobody is left, the ISR waits for its members.
    return partition._replace(offline_replicas=offline, isr=left or partition.isr)


def _with(partition: PartitionImage, broker_id: int) -> PartitionImage:
    left = tuple(each for each in partition.offline_replicas if each != broker_id)
    return partition._replace(offline_replicas=left)
