"""Single requests to single brokers, as large as the brokers like them.

The methods of the admin look for leaders and coordinators on each call. The collector knows them: leaders
from the description of the topics, coordinators because each broker lists the groups that it coordinates. So
a look at thousands of topics and groups takes a few requests per broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from klamm.client.admin import cluster, topics
from klamm.client.admin.calls import AdminCalls
from klamm.client.admin.groups import describe_groups_at
from klamm.client.admin.offsets import fetch_of_groups
from klamm.client.admin.storage import log_directory
from klamm.client.admin.types import (
    ClusterDescription,
    GroupDescription,
    GroupListing,
    LogDirectory,
    TopicDescription,
)
from klamm.client.arguments import by_topic
from klamm.client.errors import TimedOut
from klamm.client.network.network import Network
from klamm.client.results import TopicPartition
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest
from klamm.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest

LATEST = -1
EARLIEST = -2
CONSUMER = -1

PARTITIONS_PER_REQUEST = 1_000
"""Encoding and decoding a request of this size keeps the event loop for some milliseconds."""
GROUPS_PER_REQUEST = 200
PATIENCE_S = 5.0
"""How long one broker may take for one answer."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Asking:
    """The connections of the console to the brokers."""

    def __init__(self, bootstrap: str, config: Mapping[str, str]) -> None:
        self._network = Network(ClientConfig("admin", bootstrap, dict(config), {}))
        self._calls = AdminCalls(self._network)

    async def start(self) -> None:
        await self._network.start()

    async def close(self) -> None:
        await self._network.close(1.0)

    def counters(self) -> dict[str, float]:
        """What the connections have counted so far, by name."""
        return self._network.counters.as_dict()

    # ---- of the cluster

    async def cluster(self) -> ClusterDescription:
        """The brokers and the controller. What the brokers' addresses are, the other calls know from here."""
        what = "asking for the brokers"
        return await self._network.retrying(what, PATIENCE_S, lambda: cluster.from_metadata(self._calls))

    async def topics(self) -> dict[str, TopicDescription]:
        return await topics.describe_topics(self._calls, None, PATIENCE_S)

    # ---- of one broker

    async def offsets(
        self, broker: int, partitions: Sequence[TopicPartition], time: int
    ) -> dict[TopicPartition, int]:
        """The offsets of partitions that the broker leads; those that it cannot tell are left out."""
        found: dict[TopicPartition, int] = {}
        for chunk in chunks(partitions, PARTITIONS_PER_REQUEST):
            request = ListOffsetsRequest(
                replica_id=CONSUMER,
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(partition_index=number, timestamp=time) for number in numbers
                        ],
                    )
                    for name, numbers in by_topic(chunk).items()
                ],
                timeout_ms=round(PATIENCE_S * 1000),
            )
            for topic in (await self._call(broker, request)).topics:
                for one in topic.partitions:
                    if one.error_code == ErrorCode.NONE and one.offset >= 0:
                        found[TopicPartition(topic.name, one.partition_index)] = one.offset
        return found

    async def groups(self, broker: int) -> list[GroupListing]:
        """The groups that the broker coordinates."""
        answer = await self._call(broker, ListGroupsRequest())
        if answer.error_code != ErrorCode.NONE:
            raise self._calls.failure(answer.error_code, f"listing the groups of broker {broker}")
        return [
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type)
            for one in answer.groups
        ]

    async def committed(self, broker: int, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
        """The committed offsets of groups that the broker coordinates."""
        answers = await fetch_of_groups(
            lambda request, max_version: self._call(broker, request, max_version),
            groups,
            None,
            GROUPS_PER_REQUEST,
        )
        return {
            group: _offsets(answer.topics)
            for group, answer in answers.items()
            if answer.error_code == ErrorCode.NONE
        }

    async def described(self, broker: int, groups: Sequence[str]) -> dict[str, GroupDescription]:
        """States and members of groups that the broker coordinates."""
        found: dict[str, GroupDescription] = {}
        for chunk in chunks(groups, GROUPS_PER_REQUEST):
            outcomes = await self._in_time(broker, describe_groups_at(self._calls, broker, list(chunk)))
            found |= {
                group: outcome for group, outcome in outcomes.items() if isinstance(outcome, GroupDescription)
            }
        return found

    async def log_directories(self, broker: int) -> list[LogDirectory]:
        answer = await self._call(broker, DescribeLogDirsRequest(topics=None))
        if answer.error_code != ErrorCode.NONE:
            raise self._calls.failure(answer.error_code, f"describing the log directories of broker {broker}")
        return [log_directory(self._calls, one) for one in answer.results]

    async def _call(self, broker: int, request: Any, max_version: int | None = None) -> Any:
        return await self._in_time(broker, self._network.call(broker, request, max_version=max_version))

    async def _in_time(self, broker: int, answer: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            raise TimedOut(f"asking broker {broker}", PATIENCE_S) from None


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _offsets(topics: Sequence[Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, one.partition_index): one.committed_offset
        for topic in topics
        for one in topic.partitions
        if one.error_code == ErrorCode.NONE and one.committed_offset >= 0
    }
