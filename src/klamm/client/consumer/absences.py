"""Partitions that a user assigned by hand and that their topic does not have: a poll says so. A core.

A topic that is not there at all is waited for, as with `subscribe`: it may be made yet. One that is there
says how many partitions it has, and is believed when it has said so for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.client.consumer.positions import Positions
from klamm.client.errors import UnknownTopic
from klamm.client.network.metadata import TopicMetadata
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode

PATIENCE_SECONDS = 1.0
"""How long a partition may be missing: brokers hear of new ones one after the other."""


class Absences:
    """Looks after the partitions of `positions`."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._since: dict[TopicPartition, float] = {}

    def look(self, topics: Mapping[str, TopicMetadata], now: float) -> bool:
        """Compare with what is known of the topics; whether there is something for a poll to raise."""
        is_news = False
        since: dict[TopicPartition, float] = {}
        for partition, state in list(self._positions.states.items()):
            topic = topics.get(partition.topic)
            if topic is None or not topic.exists or 0 <= partition.partition < len(topic.partitions):
                continue
            since[partition] = self._since.get(partition, now)
            if now - since[partition] >= PATIENCE_SECONDS and state.error is None:
                self._positions.fail(state, state.version, _no_such_partition(partition, topic))
                is_news = True
        self._since = since
        return is_news


def _no_such_partition(partition: TopicPartition, topic: TopicMetadata) -> UnknownTopic:
    count = len(topic.partitions)
    error = UnknownTopic(
        f"topic {topic.name!r} has no partition {partition.partition}: it has {count}, "
        f"{'number 0' if count == 1 else f'numbers 0 to {count - 1}'}",
        code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        advice="Assign one that is there, or give the topic more partitions",
    )
    error.retriable = False  # to wait longer does not help, as it does with a topic that is being made
    return error
