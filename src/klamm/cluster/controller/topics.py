"""Topics that are created, grown and deleted, with where their replicas go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.controller.partitions import described, find_topic, new_partition, new_partition_unit
from klamm.cluster.image import (
    ClusterImage,
    DeletedTopic,
    ImageDelta,
    TopicDelta,
    TopicImage,
    topic_delta,
)
from klamm.cluster.placement import place_replicas
from klamm.cluster.topic_names import check_topic_name, colliding_name
from klamm.config.loading import BrokerConfig, ConfigError
from klamm.config.topic_keys import validate_topic_config
from klamm.coordination.store import Create, Delete, Set
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicId

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
    description = (
        Create(layout.topic_path(topic.name), described(topic)),
        Create(layout.topic_config_path(topic.name), layout.encode_config(topic.config)),
        Create(layout.partitions_path(topic.name)),
    )
    units = (description, *_new_partition_units(topic, 0, controller_epoch))
    return Change.of(image, units, ImageDelta({topic.name: topic_delta(None, topic)}))


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
    return place_replicas(_racks(image, factor), count, factor, start=start)


def create_partitions(
    image: ClusterImage, new: NewPartitions, *, controller_epoch: int, start: int
) -> Change:
    topic = find_topic(image, new.topic)
    before = len(topic.partitions)
    if new.partition_count <= before:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic {topic.name} has {before} partitions already: give a count above {before}, "
            f"not {new.partition_count}",
        )
    added = new.partition_count - before
    if new.assignment is None:
        factor = topic.replication_factor
        if factor > len(image.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"a partition of {topic.name} needs {factor} replicas, but only {len(image.brokers)} brokers "
                "are alive: start more brokers",
            )
        placed = place_replicas(_racks(image, factor), added, factor, start=start, first_partition=before)
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
        (Set(layout.topic_path(topic.name), described(grown)),),
        *_new_partition_units(grown, before, controller_epoch),
    )
    delta = TopicDelta(topic, grown, tuple(range(before, len(partitions))))
    return Change.of(image, units, ImageDelta({topic.name: delta}))


def _new_partition_units(topic: TopicImage, first: int, controller_epoch: int) -> Iterator[Unit]:
    for index in range(first, len(topic.partitions)):
        yield new_partition_unit(topic.name, index, topic.partitions[index], controller_epoch)


def delete_topic(image: ClusterImage, name: str) -> Change:
    """The topic is gone at once; that it was deleted is remembered until no broker has files of it."""
    topic = find_topic(image, name)
    brokers = sorted({broker_id for partition in topic.partitions for broker_id in partition.replicas})
    deleted = DeletedTopic(name, topic.topic_id, len(topic.partitions), tuple(brokers))
    mark = (Create(layout.deleted_topic_path(deleted), layout.encode_deleted_topic(deleted)),)
    delta = ImageDelta({name: TopicDelta(topic, None, ())}, deleted_topics={topic.topic_id: deleted})
    # The mark comes first: a topic that is there and marked is being deleted (see `loading`).
    return Change.of(image, (mark, *deletion_units(topic)), delta)


def confirm_deletions(image: ClusterImage, broker_id: int, topic_ids: Iterable[bytes]) -> Change:
    """The broker has no files of these topics. The last broker to say so lets a deletion be forgotten."""
    units: list[Unit] = []
    changed: dict[bytes, DeletedTopic | None] = {}
    for topic_id in topic_ids:
        deleted = image.deleted_topics.get(topic_id)
        if deleted is None or broker_id not in deleted.brokers:
            continue
        left = deleted._replace(brokers=tuple(each for each in deleted.brokers if each != broker_id))
        path = layout.deleted_topic_path(deleted)
        units.append((Set(path, layout.encode_deleted_topic(left)) if left.brokers else Delete(path),))
        changed[topic_id] = left if left.brokers else None
    return Change.of(image, units, ImageDelta(deleted_topics=changed))


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


def _racks(image: ClusterImage, replication_factor: int) -> dict[int, str | None]:
    """The brokers that get replicas; among them brokers that are shutting down only if they are needed."""
    staying = {broker.id: broker.rack for broker in image.brokers.values() if not broker.is_shutting_down}
    if len(staying) >= replication_factor:
        return staying
    return {broker.id: broker.rack for broker in image.brokers.values()}


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
        problem = "is empty: name at least one broker"
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
