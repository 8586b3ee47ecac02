"""Topics for tests, made over a bare connection: what is tested is not used to prepare the test."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import wait_until
from tests.abuse.calls import create_topic


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def make_topic(
    bootstrap: str,
    name: str | None = None,
    *,
    partitions: int = 1,
    configs: Mapping[str, str | int] | None = None,
) -> str:
    """Create a topic with a name of its own and wait until it has leaders; Apache Kafka takes a moment."""
    name = name or unique("topic")
    with WireConnection(bootstrap, client_id="preparer") as connection:
        create_topic(connection, name, partitions=partitions, configs=configs)
        wait_until(lambda: has_leaders(connection, name, partitions), f"{name} has leaders")
    return name


def has_leaders(connection: WireConnection, name: str, partitions: int) -> bool:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    (topic,) = connection.call(request).topics
    return (
        topic.error_code == ErrorCode.NONE
        and len(topic.partitions) == partitions
        and all(one.error_code == ErrorCode.NONE and one.leader_id >= 0 for one in topic.partitions)
    )
