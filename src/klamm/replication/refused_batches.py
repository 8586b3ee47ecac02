"""Batches of idempotent producers that were refused for now, so that those behind them are refused alike.

A producer has several batches on the way. If the first is refused because the broker does not lead the
partition yet, or too few replicas are in sync, and this changes before the second arrives, then the second
has a gap before it. Answered with OUT_OF_ORDER_SEQUENCE_NUMBER, some clients begin a new producer epoch and
write records of other partitions twice; and from a producer that is new, the log would take the second before
the first. So the second is refused as the first was, and the producer sends both again, in their order.

Invariants: holds at most `MAX_PRODUCERS`; a batch is refused for another's sake only within `REFUSED_MS` of
the other's refusal, so a producer that gives the first one up is told of its gap then.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import MAX_SEQUENCE, BatchHeader

REFUSED_FOR_NOW = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR}
)
"""Refusals after which a producer sends the same batch again, and which may be over at any moment."""
REFUSED_MS = 5_000
"""Longer than the batches behind a refused one are on the way, shorter than clients try."""
MAX_PRODUCERS = 1_000


class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: KafkaError
    until_ms: int


class _Place(Enum):
    BEFORE = auto()
    SAME = auto()
    """Or what was refused concerns the producer no longer."""
    BEHIND = auto()


class RefusedBatches:
    """Of each producer the first batch that was refused and did not come again since."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refused] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def note(self, header: BatchHeader, error: KafkaError, now_ms: int) -> None:
        known = self._by_producer.pop(header.producer_id, None)
        if known is not None and self._place(header, known, now_ms) is _Place.BEHIND:
            self._by_producer[header.producer_id] = known
            return
        if len(self._by_producer) >= MAX_PRODUCERS:
            del self._by_producer[next(iter(self._by_producer))]
        self._by_producer[header.producer_id] = _Refused(
            header.producer_epoch, header.base_sequence, error, now_ms + REFUSED_MS
        )

    def check(self, header: BatchHeader, now_ms: int) -> None:
        """Raise the error of an earlier batch of the same producer that must come first."""
        known = self._by_producer.get(header.producer_id)
        if known is None:
            return
        place = self._place(header, known, now_ms)
        if place is _Place.BEHIND:
            raise KafkaError(
                known.error.code,
                f"the producer's batch with sequence {known.base_sequence} was refused, and must come before "
                f"the one with sequence {header.base_sequence}: {known.error.message}",
            )
        if place is _Place.SAME:
            del self._by_producer[header.producer_id]

    @staticmethod
    def _place(header: BatchHeader, known: _Refused, now_ms: int) -> _Place:
        """Where the batch of `header` is, seen from the one that was refused."""
        distance = (header.base_sequence - known.base_sequence) & MAX_SEQUENCE
        if not distance or header.producer_epoch != known.producer_epoch or now_ms >= known.until_ms:
            return _Place.SAME
        return _Place.BEHIND if distance <= MAX_SEQUENCE // 2 else _Place.BEFORE
