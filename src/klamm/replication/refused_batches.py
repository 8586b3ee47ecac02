"""Batches of idempotent producers that were refused for now, so that those behind them are refused alike.

A producer has several batches on the way. If the first is refused because the broker does not lead the
partition yet, or too few replicas are in sync, and this changes before the second arrives, then the second
has a gap before it. Answered with OUT_OF_ORDER_SEQUENCE_NUMBER, some clients begin a new producer epoch and
write records of other partitions twice; and from a producer that is new, the log would take the second before
the first. So the second is refused as the first was, and the producer sends both again, in their order.

Batches that were refused do not always come again in their order, as each waits for its own pause: so all of
them are remembered, not only the first.

Invariants: holds at most `MAX_PRODUCERS`, with at most `MAX_BATCHES` each; a batch is refused for another's
sake only within `REFUSED_MS` of the other's refusal, so a producer that gives the first one up is told of its
gap then.
"""

from __future__ import annotations

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
MAX_BATCHES = 16
"""Of one producer. Five may be on the way by protocol, and may be divided anew when they are sent again."""


class _Refused(NamedTuple):
    error: KafkaError
    until_ms: int


class _Producer(NamedTuple):
    epoch: int
    batches: dict[int, _Refused]
    """By base sequence, in the order of the refusals."""


class RefusedBatches:
    """Of each producer the batches that were refused and have not come again since."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def note(self, header: BatchHeader, error: KafkaError, now_ms: int) -> None:
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, {})
            if len(self._producers) > MAX_PRODUCERS:
                del self._producers[next(iter(self._producers))]
        producer.batches.pop(header.base_sequence, None)
        producer.batches[header.base_sequence] = _Refused(error, now_ms + REFUSED_MS)
        if len(producer.batches) > MAX_BATCHES:
            del producer.batches[next(iter(producer.batches))]

    def check(self, header: BatchHeader, now_ms: int) -> None:
        """Raise the error of an earlier batch of the same producer that must come first."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if producer.epoch != header.producer_epoch:
            del self._producers[header.producer_id]
            return
        for sequence, refused in tuple(producer.batches.items()):
            if now_ms >= refused.until_ms or sequence == header.base_sequence:
                del producer.batches[sequence]
            elif (header.base_sequence - sequence) & MAX_SEQUENCE <= MAX_SEQUENCE // 2:
                raise KafkaError(
                    refused.error.code,
                    f"the batch with sequence {sequence} was refused, and must come before the one "
                    f"with sequence {header.base_sequence}: {refused.error.message}",
                )
        if not producer.batches:
            del self._producers[header.producer_id]
