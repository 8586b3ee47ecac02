"""Topics for tests, made over a bare connection: what is tested is not used to prepare the test."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.testing.wire import WireConnection
from tests.abuse.calls import create_topic
from tests.waiting import wait_until


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def make_topic(
    bootstrap: str,
    name: str | None = None,
    *,
    partitions: int = 1,
    configs: Mapping[str, str | int] | None = None,
) -> str:
    """Create a topic with a name of its own and wait until its leaders serve it.

    Apache Kafka takes a moment for that, and another between naming a leader in its metadata and having the
    leader know it. The cluster is one broker: all leaders are asked over one connection.
    """
    name = name or unique("topic")
    with WireConnection(bootstrap, client_id="preparer") as connection:
        create_topic(connection, name, partitions=partitions, configs=configs)
        wait_until(lambda: has_leaders(connection, name, partitions), f"{name} has leaders")
        wait_until(lambda: leaders_serve(connection, name, partitions), f"the leaders of {name} serve it")
    return name


def has_leaders(connection: WireConnection, name: str, partitions: int) -> bool:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    (topic,) = connection.call(request).topics
    return (
        topic.error_code == ErrorCode.NONE
        and len(topic.partitions) == partitions
        and all(one.error_code == ErrorCode.NONE and one.leader_id >= 0 for one in topic.partitions)
    )


def leaders_serve(connection: WireConnection, name: str, partitions: int) -> bool:
    """Whether the broker there leads every partition: only then it lists offsets and takes records."""
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
    (topic,) = connection.call(request).topics
    return all(one.error_code == ErrorCode.NONE for one in topic.partitions)
