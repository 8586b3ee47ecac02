"""Where in the coordination store the cluster's state lies, and how it is written there.

    /cluster/id                                  the cluster's id
    /controller                                  the controller's broker id and epoch (ephemeral)
    /controller_epoch                            raised by every new controller; its writes check the version
    /brokers/ids/<id>                            a broker that is alive (ephemeral); its broker epoch is the
                                                 revision that created the node
    /brokers/epochs/<id>                         the last broker epoch that a controller has dealt with
    /brokers/topics/<topic>                      topic id, replicas of each partition
    /brokers/topics/<topic>/partitions/<p>/state leader, leader epoch, in-sync and eligible replicas; its
                                                 version is the partition epoch
    /config/topics|brokers|groups/<name>         settings made at run time
    /admin/delete_topics/<topic>:<topic id>      a deleted topic, and the brokers that may have its files
    /latest_producer_id_block                    the last block of producer ids that was given out

Values are JSON. Names that could be anything (groups) are percent-encoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from klamm.cluster.image import ALL_BROKERS, BrokerImage, DeletedTopic, Endpoint, PartitionImage, TopicImage
from klamm.coordination.store import Node, StoreError
from klamm.model.ids import NEVER_INTACT, IntactEpochs, TopicId, topic_id_from_text, topic_id_text

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
BROKER_IDS = "/brokers/ids"
BROKER_EPOCHS = "/brokers/epochs"
DELETED_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

# Every node that is always there, parents first.
SKELETON = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    BROKER_EPOCHS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    "/admin",
    DELETED_TOPICS,
)

_ALL_BROKERS_NODE = "<default>"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions_path(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def state_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_config_path(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config_path(name: str) -> str:
    return f"{BROKER_CONFIGS}/{_ALL_BROKERS_NODE if name == ALL_BROKERS else name}"


def broker_config_name(node_name: str) -> str:
    return ALL_BROKERS if node_name == _ALL_BROKERS_NODE else node_name


def group_config_path(group: str) -> str:
    # quote() leaves dots alone, and "." and ".." are not valid names of nodes.
    return f"{GROUP_CONFIGS}/{quote(group, safe='').replace('.', '%2E')}"


def group_config_name(node_name: str) -> str:
    return unquote(node_name)


def deleted_topic_path(topic: DeletedTopic) -> str:
    return f"{DELETED_TOPICS}/{topic.name}:{topic_id_text(topic.topic_id)}"


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: int) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode(path: str, node: Node) -> Any:
    try:
        return json.loads(node.value)
    except ValueError as error:
        raise StoreError(f"{path} does not hold JSON: {error}") from None


def encode_topic(topic: TopicImage) -> bytes:
    return encode(
        {
            "version": 1,
            "topic_id": topic_id_text(topic.topic_id),
            "partitions": {str(index): each.replicas for index, each in enumerate(topic.partitions)},
            "adding_replicas": {
                str(index): each.adding_replicas
                for index, each in enumerate(topic.partitions)
                if each.adding_replicas
            },
            "removing_replicas": {
                str(index): each.removing_replicas
                for index, each in enumerate(topic.partitions)
                if each.removing_replicas
            },
        }
    )


class Assignment(NamedTuple):
    """The replicas of a partition as its topic's node has them."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def decode_topic(path: str, node: Node) -> tuple[TopicId, list[Assignment]]:
    """The topic's id and the replicas of its partitions."""
    value = decode(path, node)
    try:
        partitions: Mapping[str, list[int]] = value["partitions"]
        adding: Mapping[str, list[int]] = value.get("adding_replicas", {})
        removing: Mapping[str, list[int]] = value.get("removing_replicas", {})
        assignments = [
            Assignment(tuple(partitions[name]), tuple(adding.get(name, ())), tuple(removing.get(name, ())))
            for name in map(str, range(len(partitions)))
        ]
        return topic_id_from_text(value["topic_id"]), assignments
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} does not describe a topic: {error!r}") from None


def encode_state(partition: PartitionImage, controller_epoch: int) -> bytes:
    return encode(
        {
            "version": 1,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "isr": partition.isr,
            **({"eligible": partition.eligible_replicas} if partition.eligible_replicas else {}),
            "controller_epoch": controller_epoch,
        }
    )


def decode_state(path: str, node: Node, assignment: Assignment) -> PartitionImage:
    value = decode(path, node)
    try:
        return PartitionImage(
            assignment.replicas,
            tuple(value["isr"]),
            int(value["leader"]),
            int(value["leader_epoch"]),
            node.version,
            assignment.adding,
            assignment.removing,
            tuple(value.get("eligible", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} does not describe a partition: {error!r}") from None


def encode_deleted_topic(topic: DeletedTopic) -> bytes:
    return encode(
        {
            "version": 2,
            "topic_id": topic_id_text(topic.topic_id),
            "partition_count": topic.partition_count,
            "brokers": topic.brokers,
        }
    )


def decode_deleted_topic(path: str, node: Node) -> DeletedTopic:
    """Version 1, of a broker that was alone, has the topic's description and no list of brokers."""
    value = decode(path, node)
    name = path.rpartition("/")[2].partition(":")[0]
    try:
        topic_id = topic_id_from_text(value["topic_id"])
        if "brokers" in value:
            return DeletedTopic(name, topic_id, int(value["partition_count"]), tuple(value["brokers"]))
        brokers = sorted({each for replicas in value["partitions"].values() for each in replicas})
        return DeletedTopic(name, topic_id, len(value["partitions"]), tuple(brokers))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path} does not describe a deleted topic: {error!r}") from None


class Registration(NamedTuple):
    """What a broker's own node says."""

    broker: BrokerImage
    intact_epochs: IntactEpochs = NEVER_INTACT


def encode_registration(registration: Registration) -> bytes:
    broker = registration.broker
    return encode(
        {
            "version": 1,
            "endpoints": broker.endpoints,
            "rack": broker.rack,
            "intact_epochs": registration.intact_epochs,
        }
    )


def decode_registration(path: str, node: Node) -> Registration:
    value = decode(path, node)
    try:
        endpoints = {
            str(listener): Endpoint(str(host), int(port))
            for listener, (host, port) in value["endpoints"].items()
        }
        broker_id = int(path.rpartition("/")[2])
        broker = BrokerImage(broker_id, endpoints, value["rack"], node.created_rev)
        first, last = value["intact_epochs"]
        return Registration(broker, IntactEpochs(int(first), int(last)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path} does not describe a broker: {error!r}") from None


def encode_controller(broker_id: int, epoch: int) -> bytes:
    return encode({"version": 1, "broker": broker_id, "epoch": epoch})


def decode_controller(path: str, node: Node) -> tuple[int, int]:
    """The controller's broker id and epoch."""
    value = decode(path, node)
    try:
        return int(value["broker"]), int(value["epoch"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} does not name a controller: {error!r}") from None


def encode_config(config: Mapping[str, str]) -> bytes:
    return encode({"version": 1, "config": dict(config)})


def decode_config(path: str, node: Node) -> dict[str, str]:
    value = decode(path, node)
    try:
        return {str(name): str(text) for name, text in value["config"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} does not hold settings: {error!r}") from None
