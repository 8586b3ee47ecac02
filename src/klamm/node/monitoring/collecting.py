"""Makes one scrape of a broker: walks over what exists now, and asks nobody to keep anything for it.

So what is gone, such as a deleted topic, is gone from the next scrape. The walk pauses every two milliseconds
and lets the event loop do other work: a broker may have tens of thousands of partitions and offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.apis.steps import Pauses
from klamm.cluster.image import NO_LEADER
from klamm.metrics import names
from klamm.metrics.page import Page, partition_labels
from klamm.metrics.request_times import FETCH, RequestTimes, TimesByApi, request_samples
from klamm.metrics.topic_counters import TopicCounters
from klamm.node.monitoring.group_lags import add_groups
from klamm.node.monitoring.readings import Readings
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.replication.partition import Partition

if TYPE_CHECKING:
    from klamm.node.broker import BrokerNode

ALWAYS_SHOWN = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""Also before the first request: a dashboard's panel should not be empty without a reason."""


async def collect(node: BrokerNode, readings: Readings) -> Page:
    page = Page()
    await readings.add_to(page)
    _add_requests(page, node.server.request_times)
    open_connections = node.server.open_connections()
    for listener in {*node.server.accepted, *open_connections}:
        page.add(names.CONNECTIONS, open_connections[listener], listener=listener)
        page.add(names.ACCEPTED, node.server.accepted[listener], listener=listener)
    page.add(names.REFUSED, node.server.refused_count)
    if node.has_services:
        await _add_partitions(page, node)
        await _add_cluster(page, node)
        await add_groups(page, node)
    return page


def _add_requests(page: Page, times: TimesByApi) -> None:
    for key in API_VERSIONS:
        of_api = times.of_clients[key]
        if key is ApiKey.FETCH:
            of_followers = times.of_brokers[FETCH]
            shown = [
                ("Fetch", RequestTimes.of_all((of_api, of_followers))),
                ("FetchConsumer", of_api),
                ("FetchFollower", of_followers),
            ]
        else:
            shown = [(key.title, of_api)]
        for request, each in shown:
            if each.count or key in ALWAYS_SHOWN:
                for sample in request_samples(names.REQUEST_TIMES.name, request, each):
                    page.add_sample(names.REQUEST_TIMES, sample)


class _Topic:
    """What the partitions of a topic add up to."""

    __slots__ = ("counters", "led_messages")

    def __init__(self, counters: TopicCounters) -> None:
        self.counters = counters
        self.led_messages = 0


async def _add_partitions(page: Page, node: BrokerNode) -> None:
    topics: dict[str, _Topic] = {}
    pauses = Pauses()
    under_replicated = under_min_isr = leaders = offline = 0
    for partition in node.partitions:
        await pauses.pause()
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = _Topic(partition.counters)
        labels = partition_labels(partition.topic, partition.index)
        page.add_labelled(names.LOG_SIZE, labels, partition.log.size_bytes)
        offline += partition.is_offline
        leader = partition.leader
        if leader is None:
            continue
        leaders += 1
        under_min_isr += not leader.has_enough_replicas
        under_replicated += _is_under_replicated(node, partition)
        topic.led_messages += partition.log.log_end_offset
        page.add_labelled(names.OLDEST_OFFSET, labels, partition.log.log_start_offset)
        if leader.may_answer_latest:
            page.add_labelled(names.CURRENT_OFFSET, labels, partition.high_watermark)
    without_log = node.partitions.offline.without_log
    page.add(names.UNDER_REPLICATED, under_replicated)
    page.add(names.UNDER_MIN_ISR, under_min_isr)
    page.add(names.LEADERS, leaders)
    page.add(names.PARTITIONS, len(node.partitions) + len(without_log))
    page.add(names.OFFLINE_REPLICAS, offline + len(without_log))
    page.add(names.ISR_SHRINKS, node.isr_counters.shrinks)
    page.add(names.ISR_EXPANDS, node.isr_counters.expands)
    for name, topic in topics.items():
        await pauses.pause()
        _add_topic(page, name, topic)


def _is_under_replicated(node: BrokerNode, partition: Partition) -> bool:
    """Replicas that a reassignment adds need not be in sync yet."""
    missing = len(partition.replicas) - len(partition.isr)
    if missing <= 0:
        return False
    topic = node.cluster.image.topics.get(partition.topic)
    if topic is None or partition.index >= len(topic.partitions):
        return True
    return missing > len(topic.partitions[partition.index].adding_replicas)


def _add_topic(page: Page, name: str, topic: _Topic) -> None:
    counters = topic.counters
    for family, value in (
        (names.MESSAGES_IN, counters.messages_before + topic.led_messages),
        (names.BYTES_IN, counters.bytes_in),
        (names.BYTES_OUT, counters.bytes_out),
        (names.REPLICATION_BYTES_IN, counters.replication_bytes_in),
        (names.REPLICATION_BYTES_OUT, counters.replication_bytes_out),
        (names.PRODUCES, counters.produces + counters.failed_produces),
        (names.FAILED_PRODUCES, counters.failed_produces),
        (names.FETCHES, counters.fetches),
        (names.FAILED_FETCHES, counters.failed_fetches),
    ):
        page.add(family, value, topic=name)


async def _add_cluster(page: Page, node: BrokerNode) -> None:
    image, is_controller = node.cluster.image, node.cluster.is_controller
    page.add(names.ACTIVE_CONTROLLER, int(is_controller))
    if not is_controller:
        return
    pauses = Pauses()
    partitions = without_leader = 0
    for topic in image.topics.values():
        await pauses.pause()
        partitions += len(topic.partitions)
        without_leader += sum(state.leader == NO_LEADER for state in topic.partitions)
    page.add(names.ACTIVE_BROKERS, len(image.brokers))
    page.add(names.OFFLINE_PARTITIONS, without_leader)
    page.add(names.GLOBAL_TOPICS, len(image.topics))
    page.add(names.GLOBAL_PARTITIONS, partitions)
