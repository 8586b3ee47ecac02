"""What is counted of a topic on this broker, shared by its partitions here.

Shared, because a counter may not go back when one of several partitions moves to another broker. Weakly
known, so that the counters of a topic are gone when its last partition here is.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from klamm.model.errors import ErrorCode

STALE_LEADER_CODES = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""A client is told to ask again where the partition is led now. That is no failure."""


class TopicCounters:
    __slots__ = (
        "__weakref__",
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_before",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_before = 0
        """Offsets written by leaders of this broker that lead no longer, less the log ends at which those
        that lead now began. With the log ends of now it is the number of messages: an append need not count
        them."""
        self.bytes_in = 0
        self.produces = 0
        """Batches that were appended, or that had been before."""
        self.failed_produces = 0
        self.bytes_out = 0
        """To consumers."""
        self.fetches = 0
        """Answers for one partition, to consumers and followers, that failed or not."""
        self.failed_fetches = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def note_failed_produce(self, code: ErrorCode) -> None:
        self.failed_produces += code not in STALE_LEADER_CODES

    def note_failed_fetch(self, code: ErrorCode) -> None:
        self.failed_fetches += code not in STALE_LEADER_CODES


class CountersByTopic:
    """The counters of the topics that have partitions on this broker."""

    def __init__(self) -> None:
        self._counters: WeakValueDictionary[bytes, TopicCounters] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._counters)

    def of(self, topic_id: bytes) -> TopicCounters:
        counters = self._counters.get(topic_id)
        if counters is None:
            counters = self._counters[topic_id] = TopicCounters()
        return counters


class IsrCounters:
    """Changes of ISRs that leaders of this broker had the controller make."""

    __slots__ = ("expands", "shrinks")

    def __init__(self) -> None:
        self.shrinks = 0
        self.expands = 0

    def note(self, before: int, after: int) -> None:
        """An ISR of `before` replicas has `after`."""
        self.shrinks += after < before
        self.expands += after > before
