"""Collects the new states of partitions after an event, and turns them into one change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.controller.eligible import eligible_after, min_insync_replicas
from klamm.cluster.image import ClusterImage, ImageDelta, PartitionImage, TopicDelta, TopicImage
from klamm.config.loading import BrokerConfig
from klamm.coordination.store import MAX_VALUE_BYTES, Create, Set
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition


class PartitionChanges:
    """Collects new states of partitions, and makes one change of them."""

    def __init__(self, image: ClusterImage, config: BrokerConfig, controller_epoch: int) -> None:
        self._image = image
        self._config = config
        self._controller_epoch = controller_epoch
        self._changed: dict[str, dict[int, PartitionImage]] = {}

    def put(
        self,
        topic: str,
        index: int,
        after: PartitionImage,
        *,
        raises_epoch: bool = False,
        untrusted: Collection[int] = (),
    ) -> PartitionImage:
        """Returns `after` in its new partition epoch; the partition itself if nothing is changed, unless
        `raises_epoch`. Replicas on `untrusted` brokers are not eligible to lead, see `eligible_after`."""
        before = self._image.topics[topic].partitions[index]
        minimum = min_insync_replicas(self._config, self._image.topics[topic])
        after = after._replace(
            partition_epoch=before.partition_epoch,
            eligible_replicas=eligible_after(before, after, minimum, untrusted),
        )
        if after.offline_replicas:
            left = tuple(each for each in after.replicas if each in after.offline_replicas)
            after = after._replace(offline_replicas=left)
        if after == before and not raises_epoch:
            self._changed.get(topic, {}).pop(index, None)
            return before
        after = after._replace(partition_epoch=before.partition_epoch + 1)
        self._changed.setdefault(topic, {})[index] = after
        return after

    def change(self, further_units: Iterable[Unit] = (), further: ImageDelta | None = None) -> Change:
        """The change, with what else it shall write and change besides topics."""
        units: list[Unit] = []
        deltas: dict[str, TopicDelta] = {}
        for name in sorted(self._changed):
            states = self._changed[name]
            if states:
                deltas[name] = self._topic_delta(name, states)
                units += self._units(deltas[name])
        delta = replace(further or ImageDelta(), topics=deltas)
        return Change.of(self._image, (*units, *further_units), delta)

    def _topic_delta(self, name: str, states: dict[int, PartitionImage]) -> TopicDelta:
        topic = self._image.topics[name]
        partitions = list(topic.partitions)
        for index, after in states.items():
            partitions[index] = after
        return TopicDelta(topic, replace(topic, partitions=tuple(partitions)), tuple(sorted(states)))

    def _units(self, delta: TopicDelta) -> Iterable[Unit]:
        """Each state is stored only if the one before is still there. What changes the replicas of partitions
        is stored together with the topic's description, which has them."""
        before, after = delta.before, delta.after
        assert before is not None and after is not None
        reassigned: list[Set] = []
        for index in delta.partitions:
            old, new = before.partitions[index], after.partitions[index]
            state = layout.encode_state(new, self._controller_epoch)
            operation = Set(layout.state_path(after.name, index), state, old.partition_epoch)
            if _assignment(old) == _assignment(new):
                yield (operation,)
            else:
                reassigned.append(operation)
        if reassigned:
            yield (Set(layout.topic_path(after.name), described(after)), *reassigned)


def _assignment(partition: PartitionImage) -> layout.Assignment:
    return layout.Assignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)


def raise_leader_epochs(
    image: ClusterImage, config: BrokerConfig, which: Iterable[TopicPartition], *, controller_epoch: int
) -> Change:
    """The same leaders in new epochs, so that clients check whether their offsets still hold."""
    changes = PartitionChanges(image, config, controller_epoch)
    for name, index in which:
        partition = find_topic(image, name).partitions[index]
        changes.put(name, index, led_by(partition, partition.leader))
    return changes.change()


def led_by(partition: PartitionImage, leader: int) -> PartitionImage:
    """In a new leader epoch."""
    return partition._replace(leader=leader, leader_epoch=partition.leader_epoch + 1)


def new_partition(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(replicas, isr=replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0)


def new_partition_unit(name: str, index: int, partition: PartitionImage, controller_epoch: int) -> Unit:
    """What stores a new partition of a topic whose description has it already."""
    return (
        Create(layout.partition_path(name, index)),
        Create(layout.state_path(name, index), layout.encode_state(partition, controller_epoch)),
    )


def described(topic: TopicImage) -> bytes:
    """The topic as it is stored, which has a limit."""
    value = layout.encode_topic(topic)
    if len(value) > MAX_VALUE_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic {topic.name} is refused with {len(topic.partitions)} partitions: the list of their "
            f"replicas has {len(value)} bytes, and the metadata store takes {MAX_VALUE_BYTES}",
        )
    return value


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def find_partition(image: ClusterImage, name: str, index: int) -> PartitionImage:
    topic = find_topic(image, name)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic {name} has {len(topic.partitions)} partitions: there is no partition {index}",
        )
    return topic.partitions[index]
