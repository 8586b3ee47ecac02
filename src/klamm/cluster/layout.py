"""Where in the coordination store the cluster's state lies, and how it is written there.

    /cluster/id                                  the cluster's id
    /controller_epoch                            raised by every new controller; its writes check the version
    /brokers/topics/<topic>                      topic id, replicas of each partition
    /brokers/topics/<topic>/partitions/<p>/state leader, leader epoch, in-sync replicas; its version is the
                                                 partition epoch
    /config/topics|brokers|groups/<name>         settings made at run time
    /admin/delete_topics/<topic>                 a deleted topic whose files may still be there
    /latest_producer_id_block                    the last block of producer ids that was given out

Values are JSON. Names that could be anything (groups) are percent-encoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from klamm.cluster.image import ALL_BROKERS, PartitionImage, TopicImage
from klamm.coordination.store import Node, StoreError
from klamm.model.ids import TopicId, topic_id_from_text, topic_id_text

CLUSTER_ID = "/cluster/id"
CONTROLLER_EPOCH = "/controller_epoch"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
DELETED_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

# Every node that is always there, parents first.
SKELETON = (
    "/cluster",
    "/brokers",
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


def deleted_topic_path(name: str) -> str:
    return f"{DELETED_TOPICS}/{name}"


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
        }
    )


def decode_topic(path: str, node: Node) -> tuple[TopicId, list[tuple[int, ...]]]:
    """The topic's id and the replicas of its partitions."""
    value = decode(path, node)
    try:
        partitions: Mapping[str, list[int]] = value["partitions"]
        replicas = [tuple(partitions[str(index)]) for index in range(len(partitions))]
        return topic_id_from_text(value["topic_id"]), replicas
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} does not describe a topic: {error!r}") from None


def encode_state(partition: PartitionImage, controller_epoch: int) -> bytes:
    return encode(
        {
            "version": 1,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "isr": partition.isr,
            "controller_epoch": controller_epoch,
        }
    )


def decode_state(path: str, node: Node, replicas: tuple[int, ...]) -> PartitionImage:
    value = decode(path, node)
    try:
        return PartitionImage(
            replicas, tuple(value["isr"]), int(value["leader"]), int(value["leader_epoch"]), node.version
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} does not describe a partition: {error!r}") from None


def encode_config(config: Mapping[str, str]) -> bytes:
    return encode({"version": 1, "config": dict(config)})


def decode_config(path: str, node: Node) -> dict[str, str]:
    value = decode(path, node)
    try:
        return {str(name): str(text) for name, text in value["config"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} does not hold settings: {error!r}") from None
