"""The topics of the simulated cluster, and what its store says of them, as seen from outside."""

from __future__ import annotations

from klamm.cluster import layout
from klamm.cluster.controller.topics import NewTopic, create_topic
from klamm.cluster.image import (
    OFFSETS_TOPIC,
    BrokerDelta,
    BrokerImage,
    ClusterImage,
    ImageDelta,
    PartitionImage,
)
from klamm.config.broker_config import BrokerConfig
from klamm.coordination.store import Create
from klamm.model.ids import TopicId, TopicPartition, topic_id_text
from klamm.testing.simulation.store import StoreServer

RECORDS_TOPIC = "records"
RECORD_PARTITIONS = range(0, 2)
"""Places, in `PLACES`, of the partitions that producers write to."""
PLACES = (
    TopicPartition(RECORDS_TOPIC, 0),
    TopicPartition(RECORDS_TOPIC, 1),
    TopicPartition(OFFSETS_TOPIC, 0),
    TopicPartition(OFFSETS_TOPIC, 1),
)
"""All partitions. Simulated parts name a partition by its place in here."""
INDEXES = {place: index for index, place in enumerate(PLACES)}
TOPIC_IDS = {RECORDS_TOPIC: TopicId(bytes(15) + b"\1"), OFFSETS_TOPIC: TopicId(bytes(15) + b"\2")}
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2


def fill_store(store: StoreServer, broker_ids: range) -> None:
    """Make the topics, as a controller would have made them, before anybody starts."""
    skeleton = [Create(path) for path in layout.SKELETON]
    store.apply(
        [
            *skeleton,
            Create(layout.CONTROLLER_EPOCH, layout.encode(0)),
            Create(layout.CLUSTER_ID, layout.encode(topic_id_text(TopicId(bytes(16))))),
        ]
    )
    ids = list(broker_ids)
    brokers = {id_: BrokerDelta(None, BrokerImage(id_, {})) for id_ in ids}
    image = ClusterImage("simulated", -1).with_delta(ImageDelta(brokers=brokers))
    for name, topic_id in TOPIC_IDS.items():
        assignment = [
            (place.partition, [ids[(index + number) % len(ids)] for number in range(REPLICATION_FACTOR)])
            for index, place in enumerate(PLACES)
            if place.topic == name
        ]
        change = create_topic(
            image,
            BrokerConfig(),
            NewTopic(
                name,
                assignment=assignment,
                config={"min.insync.replicas": str(MIN_INSYNC_REPLICAS)},
            ),
            controller_epoch=0,
            topic_id=topic_id,
            start=0,
        )
        store.apply(change.operations)
        image = change.image


def stored_partitions(store: StoreServer) -> list[PartitionImage]:
    """The state of each partition, in the order of `PLACES`."""
    described = {}
    for name in TOPIC_IDS:
        path = layout.topic_path(name)
        node = store.find(path)
        assert node is not None
        described[name] = layout.decode_topic(path, node)[1]
    states = []
    for place in PLACES:
        path = layout.state_path(*place)
        node = store.find(path)
        assert node is not None
        states.append(layout.decode_state(path, node, described[place.topic][place.partition]))
    return states


def registered_epochs(store: StoreServer) -> dict[int, int]:
    """The broker epoch of each broker that is alive, as the store says."""
    nodes = {
        int(name): store.find(layout.broker_path(int(name))) for name in store.children(layout.BROKER_IDS)
    }
    return {id_: node.created_rev for id_, node in nodes.items() if node is not None}


def known_epochs(store: StoreServer) -> dict[int, int]:
    """The last broker epoch of each broker that a controller has dealt with."""
    known = {}
    for name in store.children(layout.BROKER_EPOCHS):
        path = layout.broker_epoch_path(int(name))
        node = store.find(path)
        assert node is not None
        known[int(name)] = int(layout.decode(path, node))
    return known


def controller_id(store: StoreServer) -> int | None:
    node = store.find(layout.CONTROLLER)
    return None if node is None else layout.decode_controller(layout.CONTROLLER, node)[0]
