"""Reading the whole of the cluster's state from the store, in a few rounds of pipelined calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from klamm.cluster import layout
from klamm.cluster.changes import Unit
from klamm.cluster.controller.partitions import new_partition, new_partition_unit
from klamm.cluster.controller.topics import deletion_units
from klamm.cluster.image import ClusterImage, DeletedTopic, PartitionImage, TopicImage, image_of_topics
from klamm.cluster.persistent_map import PersistentMap
from klamm.coordination.store import Create, Delete, Node, NodeExists, NoNode, Set, Store
from klamm.model.ids import TopicId, new_topic_id, topic_id_text


class Loaded(NamedTuple):
    image: ClusterImage
    unfinished: tuple[Unit, ...]
    """What is left to write of changes that a crash cut short: states of new partitions, and the rest of
    topics that were being deleted. The image has these changes already."""


async def prepare_store(store: Store) -> None:
    """Make the nodes that are always there, in a store that is new."""
    wanted = dict.fromkeys(layout.SKELETON, b"")
    wanted[layout.CONTROLLER_EPOCH] = layout.encode(0)
    # The cluster's id has the form of a topic's: 16 random bytes in URL-safe base64.
    wanted[layout.CLUSTER_ID] = layout.encode(topic_id_text(new_topic_id()))
    while True:
        missing = [path for path in wanted if not await _exists(store, path)]
        try:
            if missing:
                await store.txn([Create(path, wanted[path]) for path in missing])
            return
        except NodeExists:
            continue  # another broker of this machine made some of them meanwhile


async def _exists(store: Store, path: str) -> bool:
    try:
        await store.get(path)
    except NoNode:
        return False
    return True


class ControllerTerm(NamedTuple):
    """The time in which this broker is the controller: every write checks that no other became it since."""

    epoch: int
    version: int


async def claim_controller(store: Store) -> ControllerTerm:
    """Begin a new controller epoch."""
    node = await store.get(layout.CONTROLLER_EPOCH)
    epoch = int(layout.decode(layout.CONTROLLER_EPOCH, node)) + 1
    await store.txn([Set(layout.CONTROLLER_EPOCH, layout.encode(epoch), node.version)])
    return ControllerTerm(epoch, node.version + 1)


async def read_image(store: Store, controller_id: int, controller_epoch: int) -> Loaded:
    """The image that the store describes, with no brokers in it: those make themselves known."""
    # Another server of the store may lag behind a write of ours whose answer was lost.
    await store.sync()
    cluster_id, topics, brokers, groups, marks, epochs = await asyncio.gather(
        store.get(layout.CLUSTER_ID),
        _read_topics(store),
        _read_configs(store, layout.BROKER_CONFIGS, layout.broker_config_name),
        _read_configs(store, layout.GROUP_CONFIGS, layout.group_config_name),
        _read_deleted_topics(store),
        _read_known_epochs(store),
    )
    unfinished: list[Unit] = [
        (Delete(path), Create(layout.deleted_topic_path(topic), layout.encode_deleted_topic(topic)))
        for path, topic in marks
        if path != layout.deleted_topic_path(topic)
    ]
    deleted: PersistentMap[bytes, DeletedTopic] = PersistentMap((topic.topic_id, topic) for _, topic in marks)
    there: dict[str, TopicImage] = {}
    for topic, missing in topics:
        if topic.topic_id in deleted:
            unfinished += deletion_units(topic, missing)
            continue
        there[topic.name] = topic
        unfinished += (
            new_partition_unit(topic.name, index, topic.partitions[index], controller_epoch)
            for index in missing
        )
    image = image_of_topics(str(layout.decode(layout.CLUSTER_ID, cluster_id)), controller_id, there)
    image = replace(
        image,
        broker_configs=PersistentMap(brokers),
        group_configs=PersistentMap(groups),
        deleted_topics=deleted,
        known_epochs=PersistentMap(epochs),
    )
    return Loaded(image, tuple(unfinished))


async def _read_deleted_topics(store: Store) -> list[tuple[str, DeletedTopic]]:
    """Each with the path of its node."""
    paths = [f"{layout.DELETED_TOPICS}/{name}" for name in await store.list(layout.DELETED_TOPICS)]
    nodes = await _get_all(store, paths)
    return [(path, layout.decode_deleted_topic(path, node)) for path, node in zip(paths, nodes, strict=True)]


async def _read_known_epochs(store: Store) -> dict[int, int]:
    names = await store.list(layout.BROKER_EPOCHS)
    paths = [f"{layout.BROKER_EPOCHS}/{name}" for name in names]
    nodes = await _get_all(store, paths)
    return {
        int(name): int(layout.decode(path, node))
        for name, path, node in zip(names, paths, nodes, strict=True)
    }


async def _read_topics(store: Store) -> list[tuple[TopicImage, list[int]]]:
    """Each topic with those of its partitions whose state is not stored."""
    names = await store.list(layout.TOPICS)
    nodes, configs = await asyncio.gather(
        _get_all(store, [layout.topic_path(name) for name in names]),
        _get_all(store, [layout.topic_config_path(name) for name in names]),
    )
    described = {
        name: layout.decode_topic(layout.topic_path(name), node)
        for name, node in zip(names, nodes, strict=True)
    }
    places = [
        (name, index, layout.state_path(name, index), assignment)
        for name, (_, assignments) in described.items()
        for index, assignment in enumerate(assignments)
    ]
    states = await asyncio.gather(*(store.get(path) for _, _, path, _ in places), return_exceptions=True)
    partitions_of: dict[str, list[PartitionImage]] = {name: [] for name in names}
    missing_of: dict[str, list[int]] = {name: [] for name in names}
    for (name, index, path, assignment), node in zip(places, states, strict=True):
        if isinstance(node, NoNode):
            partitions_of[name].append(new_partition(assignment.replicas))
            missing_of[name].append(index)
        elif isinstance(node, BaseException):
            raise node
        else:
            partitions_of[name].append(layout.decode_state(path, node, assignment))
    return [
        (_topic(name, described[name][0], partitions_of[name], config), missing_of[name])
        for name, config in zip(names, configs, strict=True)
    ]


def _topic(name: str, topic_id: TopicId, partitions: list[PartitionImage], config: Node) -> TopicImage:
    settings = layout.decode_config(layout.topic_config_path(name), config)
    return TopicImage(name, topic_id, tuple(partitions), settings)


async def _read_configs(
    store: Store, parent: str, name_of: Callable[[str], str]
) -> Mapping[str, Mapping[str, str]]:
    names = await store.list(parent)
    paths = [f"{parent}/{name}" for name in names]
    nodes = await _get_all(store, paths)
    return {
        name_of(name): layout.decode_config(path, node)
        for name, path, node in zip(names, paths, nodes, strict=True)
    }


def _get_all(store: Store, paths: list[str]) -> Awaitable[list[Node]]:
    """All nodes of `paths`, asked for at once."""
    return asyncio.gather(*(store.get(path) for path in paths))
