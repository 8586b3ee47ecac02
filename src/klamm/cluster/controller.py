"""The controller: what a command does to the cluster, worked out without doing it.

Each function takes the image and a command and returns a Change: the operations for the store, and the delta
of the image that they make; or it raises the KafkaError that the client is to see. Nothing here waits,
reads a clock or draws a random number: `service`, which applies the changes, passes topic ids and random
numbers in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.image import ClusterImage, ImageDelta, PartitionImage, TopicDelta, TopicImage, topic_delta
from klamm.cluster.placement import place_replicas
from klamm.cluster.topic_names import check_topic_name, colliding_name
from klamm.config.loading import BrokerConfig, ConfigError
from klamm.config.topic_keys import validate_topic_config
from klamm.coordination.store import MAX_VALUE_BYTES, Create, Delete, Set
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId, TopicPartition

USE_DEFAULT = -1

# The most partitions that one request may make, as in Kafka: a typing error must not fill the disk.
MAX_NEW_PARTITIONS = 10_000


class NewTopic(NamedTuple):
    """A topic to be made; -1 takes the broker's default. `assignment` pairs partitions with replicas."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: Sequence[tuple[int, Sequence[int]]] = ()
    config: Mapping[str, str] = {}


class NewPartitions(NamedTuple):
    """A topic that is to have `partition_count` partitions; `assignment` has the replicas of the new ones."""

    topic: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None


def create_topic(
    image: ClusterImage,
    config: BrokerConfig,
    new: NewTopic,
    *,
    controller_epoch: int,
    topic_id: TopicId,
    start: int,
) -> Change:
    """`start` is any number; it says at which broker the placement of replicas begins."""
    check_topic_name(new.name)
    if new.name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {new.name} exists already")
    collision = colliding_name(new.name, image.similar_topic_names)
    if collision is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"the topic name {new.name!r} is refused: it differs from {collision!r} only in '.' against '_'",
        )
    placed = _manual_placement(image, new) if new.assignment else _placement(image, config, new, start)
    try:
        validate_topic_config(config, new.config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    partitions = tuple(new_partition(replicas) for replicas in placed)
    topic = TopicImage(new.name, topic_id, partitions, dict(new.config))
    # The description comes first: a partition that it has and whose state is missing is new (see `loading`).
    described = (
        Create(layout.topic_path(topic.name), _described(topic)),
        Create(layout.topic_config_path(topic.name), layout.encode_config(topic.config)),
        Create(layout.partitions_path(topic.name)),
    )
    units = (described, *_new_partition_units(topic, 0, controller_epoch))
    return Change.of(image, units, _topic_changed(None, topic))


def _placement(image: ClusterImage, config: BrokerConfig, new: NewTopic, start: int) -> list[tuple[int, ...]]:
    factor, count = new.replication_factor, new.partition_count
    if factor == USE_DEFAULT:
        factor = config.int_("default.replication.factor")
    if count == USE_DEFAULT:
        count = config.int_("num.partitions")
    if factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor {factor} of {new.name} is refused: it must be at least 1, "
            "or -1 for the default",
        )
    if count < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions for {new.name} are refused: there must be at least 1, or -1 for the default",
        )
    if factor > len(image.brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor {factor} of {new.name} is refused: "
            f"the cluster has {len(image.brokers)} brokers",
        )
    return place_replicas(_racks(image), count, factor, start=start)


def create_partitions(
    image: ClusterImage, new: NewPartitions, *, controller_epoch: int, start: int
) -> Change:
    topic = find_topic(image, new.topic)
    before = len(topic.partitions)
    if new.partition_count <= before:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic {topic.name} has {before} partitions; {new.partition_count} would not be more",
        )
    added = new.partition_count - before
    if new.assignment is None:
        factor = topic.replication_factor
        if factor > len(image.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"each partition of {topic.name} has {factor} replicas: "
                f"the cluster has {len(image.brokers)} brokers",
            )
        placed = place_replicas(_racks(image), added, factor, start=start, first_partition=before)
    else:
        if len(new.assignment) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas are given for {len(new.assignment)} partitions, but {added} are to be added",
            )
        placed = [
            _checked_replicas(image, before + index, replicas, topic.replication_factor)
            for index, replicas in enumerate(new.assignment)
        ]
    partitions = topic.partitions + tuple(new_partition(replicas) for replicas in placed)
    grown = replace(topic, partitions=partitions)
    units = (
        (Set(layout.topic_path(topic.name), _described(grown)),),
        *_new_partition_units(grown, before, controller_epoch),
    )
    return Change.of(image, units, _topic_changed(topic, grown, range(before, len(partitions))))


def _described(topic: TopicImage) -> bytes:
    """The topic as it is stored, which has a limit."""
    value = layout.encode_topic(topic)
    if len(value) > MAX_VALUE_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic {topic.name} is refused with {len(topic.partitions)} partitions: the list of their "
            f"replicas has {len(value)} bytes, and the metadata store takes {MAX_VALUE_BYTES}",
        )
    return value


def _new_partition_units(topic: TopicImage, first: int, controller_epoch: int) -> Iterator[Unit]:
    for index in range(first, len(topic.partitions)):
        yield new_partition_unit(topic.name, index, topic.partitions[index], controller_epoch)


def new_partition_unit(name: str, index: int, partition: PartitionImage, controller_epoch: int) -> Unit:
    """What stores a new partition of a topic whose description has it already."""
    return (
        Create(layout.partition_path(name, index)),
        Create(layout.state_path(name, index), layout.encode_state(partition, controller_epoch)),
    )


def _topic_changed(
    before: TopicImage | None, after: TopicImage | None, partitions: Iterable[int] | None = None
) -> ImageDelta:
    """The delta of one topic; `partitions` are the changed ones, where the caller knows them."""
    either = after or before
    assert either is not None, "a change of no topic"
    name = either.name
    if partitions is None:
        return ImageDelta({name: topic_delta(before, after)})
    return ImageDelta({name: TopicDelta(before, after, tuple(partitions))})


def delete_topic(image: ClusterImage, name: str, *, is_marked: bool) -> Change:
    """The topic is gone at once; a mark stays until its files are gone too.

    `is_marked` says that a mark of an earlier topic of that name is still there.
    """
    topic = find_topic(image, name)
    mark = layout.deleted_topic_path(name)
    marking: Unit = (Create(mark, layout.encode_topic(topic)),)
    if is_marked:
        marking = (Delete(mark), *marking)
    # The mark comes first: a topic that is there and marked is being deleted (see `loading`).
    return Change.of(image, (marking, *deletion_units(topic)), _topic_changed(topic, None))


def deletion_units(topic: TopicImage, missing: Collection[int] = ()) -> Iterator[Unit]:
    """What deletes a topic from the store; `missing` are the partitions that were deleted already."""
    name = topic.name
    for index in range(len(topic.partitions)):
        if index not in missing:
            yield (Delete(layout.state_path(name, index)), Delete(layout.partition_path(name, index)))
    yield (
        Delete(layout.partitions_path(name)),
        Delete(layout.topic_path(name)),
        Delete(layout.topic_config_path(name)),
    )


def raise_leader_epochs(
    image: ClusterImage, which: Iterable[TopicPartition], *, controller_epoch: int
) -> Change:
    """The same leaders in new epochs, so that clients check whether their offsets still hold."""
    changed: dict[str, dict[int, PartitionImage]] = {}
    for name, index in which:
        before = find_topic(image, name).partitions[index]
        changed.setdefault(name, {})[index] = before._replace(
            leader_epoch=before.leader_epoch + 1, partition_epoch=before.partition_epoch + 1
        )
    return change_partitions(image, changed, controller_epoch)


def change_partitions(
    image: ClusterImage, changed: Mapping[str, Mapping[int, PartitionImage]], controller_epoch: int
) -> Change:
    """New states of partitions, by topic and index. Each is stored only if the one before is still there."""
    units: list[Unit] = []
    deltas: dict[str, TopicDelta] = {}
    for name, states in changed.items():
        topic = image.topics[name]
        partitions = list(topic.partitions)
        for index, after in states.items():
            before = partitions[index]
            assert after.partition_epoch == before.partition_epoch + 1, "the epoch is the node's version"
            partitions[index] = after
            state = layout.encode_state(after, controller_epoch)
            units.append((Set(layout.state_path(name, index), state, before.partition_epoch),))
        deltas[name] = TopicDelta(topic, replace(topic, partitions=tuple(partitions)), tuple(sorted(states)))
    return Change.of(image, units, ImageDelta(deltas))


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def _racks(image: ClusterImage) -> dict[int, str | None]:
    return {broker.id: broker.rack for broker in image.brokers.values()}


def new_partition(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(replicas, isr=replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0)


def _manual_placement(image: ClusterImage, new: NewTopic) -> list[tuple[int, ...]]:
    """The replicas that the client chose, checked."""
    for what, number in (
        ("replication factor", new.replication_factor),
        ("number of partitions", new.partition_count),
    ):
        if number != USE_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"replicas are given for {new.name}, so its {what} must be -1, not {number}",
            )
    by_index: dict[int, Sequence[int]] = {}
    for index, replicas in new.assignment:
        if index in by_index:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas of partition {index} are given twice"
            )
        by_index[index] = replicas
    if sorted(by_index) != list(range(len(by_index))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas are given for partitions {sorted(by_index)}; they must be 0 to {len(by_index) - 1}",
        )
    factor = len(by_index[0])
    return [_checked_replicas(image, index, by_index[index], factor) for index in range(len(by_index))]


def _checked_replicas(
    image: ClusterImage, index: int, replicas: Sequence[int], replication_factor: int
) -> tuple[int, ...]:
    unknown = [broker_id for broker_id in replicas if broker_id not in image.brokers]
    if not replicas:
        problem = "has none"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {list(replicas)}"
    elif unknown:
        problem = f"names brokers that are not there: {unknown}"
    elif len(replicas) != replication_factor:
        problem = f"has {len(replicas)}, but the others have {replication_factor}"
    else:
        return tuple(replicas)
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the list of replicas of partition {index} {problem}"
    )
