"""What keeps a consumer from reading, and that a poll has to raise therefore. A core.

- No broker can be reached: raised when that has lasted for default.api.timeout.ms, and again after each
  further such time. What no retry can heal (a wrong password, a server that is not a broker) is raised at
  once.
- A topic may not be read: raised at once.
- A partition was assigned by hand, and its topic does not have it. A topic that is not there at all is waited
  for, as with `subscribe`: it may be made yet. One that is there says how many partitions it has, and is
  believed when it has said so for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.client.consumer.positions import Positions
from klamm.client.errors import BrokerError, ClientError, NoBrokerReachable, UnknownTopic
from klamm.client.network.metadata import TopicMetadata
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode

PATIENCE_SECONDS = 1.0
"""How long a partition may be missing: brokers hear of new ones one after the other."""


_FORBIDDEN = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors of a topic that do not pass while one waits for it."""


class Outage:
    """What concerns the whole consumer, and waits for a poll to raise it."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._told_after = 0.0
        """How long no broker could be reached when that was told last."""
        self.error: ClientError | None = None

    def metadata_failed(self, error: ClientError, seconds: float) -> bool:
        """Metadata could not be had, for so long now: whether there is something for a poll to raise."""
        if not error.retriable:
            self.error = error
        elif seconds - self._told_after >= self._patience_seconds:
            self._told_after = seconds
            self.error = NoBrokerReachable(
                f"no broker could be reached for {seconds:.1f} s; the last cause was: {error.message}",
                advice="Look at the address, and whether a broker runs there",
            )
        return self.error is not None

    def metadata_came(self, topics: Mapping[str, TopicMetadata], wanted: Iterable[str]) -> bool:
        """Metadata came: whether there is something for a poll to raise."""
        self._told_after = 0.0
        self.error = None
        for name in wanted:
            topic = topics.get(name)
            if topic is not None and topic.error in _FORBIDDEN:
                self.error = BrokerError.of(topic.error, f"reading topic {name!r}")
        return self.error is not None

    def take(self) -> ClientError | None:
        error, self.error = self.error, None
        return error


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
