"""Consumer groups in a scrape: members, committed offsets, and how far these are behind.

A broker tells of the groups that it coordinates, so over all brokers each group is told of once and whole.
The end of a partition is known to its leader. Where that is another broker, the coordinator asks it as a
consumer does, with ListOffsets, once in a scrape and all leaders at the same time. The lag of a partition
whose leader does not answer in time is left out of this scrape: a lag that is wrong is worse than none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from klamm.apis.steps import Pauses
from klamm.client.errors import ClientError
from klamm.cluster.image import NO_LEADER, ClusterImage
from klamm.metrics import names
from klamm.metrics.page import Page, partition_labels
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from klamm.node.broker import BrokerNode
    from klamm.node.peers import Peers

logger = logging.getLogger("klamm.node")

LANE = "metrics"
"""A connection of its own: a scrape must not wait behind replication, nor the other way round."""

LATEST = -1
CONSUMER = -1

PARTITIONS_IN_A_REQUEST = 500
"""About a millisecond to encode, on either side."""

ENDS_TIMEOUT_S = 2.0
"""Prometheus waits for 10 s by default."""


async def add_groups(page: Page, node: BrokerNode) -> None:
    pauses = Pauses()
    image = node.cluster.image
    committed: list[tuple[str, TopicPartition, int]] = []
    for group in node.groups.observe():
        page.add(names.GROUP_MEMBERS, group.member_count, consumergroup=group.group_id)
        for place, each in list(group.offsets):
            await pauses.pause()
            topic = image.topics.get(place.topic)
            if topic is not None and each.is_for(topic.topic_id) and place.partition < len(topic.partitions):
                committed.append((group.group_id, place, each.offset))
    ends = await _ends_of(node, image, {place for _, place, _ in committed})
    for group_id, place, offset in committed:
        await pauses.pause()
        labels = partition_labels(*place, group=group_id)
        page.add_labelled(names.GROUP_OFFSET, labels, offset)
        end = ends.get(place)
        if end is not None:
            page.add_labelled(names.GROUP_LAG, labels, max(0, end - offset))


async def _ends_of(
    node: BrokerNode, image: ClusterImage, places: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The high watermarks of partitions, as far as their leaders tell them."""
    ends: dict[TopicPartition, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    pauses = Pauses()
    for place in places:
        await pauses.pause()
        partition = node.partitions.find(*place)
        if partition is not None and partition.leader is not None:
            if partition.leader.may_answer_latest:
                ends[place] = partition.high_watermark
            continue
        leader = image.topics[place[0]].partitions[place[1]].leader
        if leader not in (NO_LEADER, node.node_id):
            elsewhere.setdefault(leader, []).append(place)
    if elsewhere and node.peers is not None:
        asking = [
            asyncio.create_task(_ask(node.peers, leader, sorted(wanted), ends))
            for leader, wanted in elsewhere.items()
        ]
        _, late = await asyncio.wait(asking, timeout=ENDS_TIMEOUT_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return ends


async def _ask(
    peers: Peers, leader: int, places: Sequence[TopicPartition], ends: dict[TopicPartition, int]
) -> None:
    left = iter(places)
    try:
        while piece := list(islice(left, PARTITIONS_IN_A_REQUEST)):
            request = ListOffsetsRequest(
                replica_id=CONSUMER, isolation_level=0, topics=list(_asked(piece)), timeout_ms=0
            )
            answer = await peers.call(leader, LANE, request, ENDS_TIMEOUT_S)
            for topic in answer.topics:
                for each in topic.partitions:
                    if each.error_code == ErrorCode.NONE:
                        ends[TopicPartition(topic.name, each.partition_index)] = each.offset
            await asyncio.sleep(0)
    except ClientError as error:
        logger.debug("broker %d does not tell the ends of its partitions: %s", leader, error)


def _asked(places: Iterable[TopicPartition]) -> Iterator[ListOffsetsTopic]:
    for topic, of_topic in groupby(places, key=itemgetter(0)):
        yield ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=LATEST) for _, index in of_topic
            ],
        )
