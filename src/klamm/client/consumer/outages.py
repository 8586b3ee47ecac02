"""The conditions that keep a consumer from reading, and that a poll must raise as errors. A core.

- No broker can be reached: raised when that has lasted for default.api.timeout.ms, and again after each
  further such time. An error that retrying cannot remove (a wrong password, a server that is not a broker) is
  raised at once.
- The consumer may not read a topic: raised at once.
- A partition was assigned by hand, and its topic does not have it: raised when the metadata have said so for
  `PATIENCE_SECONDS`. If the topic does not exist, the consumer waits for it, as with `subscribe`, because the
  topic may still be created.
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
"""Errors of a topic that waiting does not remove."""


class Outage:
    """An error that concerns the whole consumer, kept until a poll raises it."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._told_after = 0.0
        """How long no broker had been reachable when a poll raised that last."""
        self.error: ClientError | None = None

    def metadata_failed(self, error: ClientError, seconds: float) -> bool:
        """Metadata could not be fetched for `seconds` now. Returns True if a poll has an error to raise."""
        if not error.retriable:
            self.error = error
        elif seconds - self._told_after >= self._patience_seconds:
            self._told_after = seconds
            self.error = NoBrokerReachable(
                f"no broker could be reached for {seconds:.1f} s; the last cause was: {error.message}",
                advice="Check the address, and that a broker runs there",
            )
        return self.error is not None

    def metadata_came(self, topics: Mapping[str, TopicMetadata], wanted: Iterable[str]) -> bool:
        """Metadata arrived. Returns True if a poll has an error to raise."""
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
    """Finds partitions of `positions` that their topics do not have."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._since: dict[TopicPartition, float] = {}

    def look(self, topics: Mapping[str, TopicMetadata], now: float) -> bool:
        """Compare the partitions with the metadata. Returns True if a poll has an error to raise."""
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
        advice="Assign a partition that exists, or add partitions to the topic",
    )
    error.retriable = False  # waiting does not help, as it does for a topic that is being created
    return error
