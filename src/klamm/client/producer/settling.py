"""Decides what happens to a batch after it was sent: settled (it has its outcome), sent again or split. A
core.

Rules, as in Kafka's own producer:
- After a retriable error the batch is sent again, after a pause and before all later batches, until
  delivery.timeout.ms is over or `retries` are used up. If the answer names the new leader there is no pause.
- After no answer at all, too: with idempotence the broker recognises a batch that it has already written.
- DUPLICATE_SEQUENCE_NUMBER means that the broker has the batch: a success without an offset.
- After MESSAGE_TOO_LARGE a batch of several records is split into two halves, which share its sequence
  numbers. A batch of one record fails. So does a batch that an earlier attempt may have written: a broker
  that has the whole batch would not recognise the halves, and would write the records twice.
- sequences.py deals with errors about sequence numbers. A broker that has lost them (UNKNOWN_PRODUCER_ID)
  gets batches again with new numbers, but not those that an earlier attempt may have written: the broker
  would not recognise them, and would write them twice. They fail. (Kafka's producer sends these again, too.)
- A batch whose time is up is settled at once, even while a request with it is under way; its memory is given
  back when that request has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from klamm.client.errors import BrokerError, ClientError, DeliveryTimedOut, RecordTooLarge, TimedOut
from klamm.client.producer.accumulator import Accumulator
from klamm.client.producer.batches import Batch, Outcome
from klamm.client.producer.queues import PartitionQueue, UnplacedBatch
from klamm.model.errors import ErrorCode

_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})

STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors that mean: we asked the wrong broker, or the topic was deleted and created again."""

_MAYBE_WRITTEN = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors that a leader may answer after it has written a batch: its followers did not acknowledge in time, or
it lost the leadership meanwhile. The next leader may have the batch."""


class Answer(NamedTuple):
    """What a broker said about one batch."""

    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    message: str | None = None
    record_errors: Mapping[int, str] | None = None


class Settling:
    """Settles the batches of one accumulator."""

    def __init__(self, accumulator: Accumulator[Any]) -> None:
        self.accumulator = accumulator
        self._ledger = accumulator.ledger
        self._settings = accumulator.settings

    def answered(
        self, batch: Batch, answer: Answer, broker: object, now: float, *, chance: float, moved: bool = False
    ) -> None:
        """A broker answered. `broker` names it in errors. `moved`: the answer named another leader, so the
        batch can be sent there without a pause."""
        code = answer.error_code
        if code in _WRITTEN:
            self.written(batch, Outcome(answer.base_offset, answer.log_append_time_ms))
            return
        queue = self._off_wire(batch)
        if batch.outcome is not None:
            self._settle(queue, batch, batch.outcome)
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.may_be_written:
            self._split(queue, batch)
        else:
            what = f"producing {batch.count} records to {batch.topic}-{batch.partition} on {broker}"
            error = BrokerError.of(code, what, answer.message)
            batch.last_error = error
            if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
                error = _not_split(error, batch)
            elif code == ErrorCode.UNKNOWN_PRODUCER_ID and batch.may_be_written:
                error = _not_renumbered(error, batch)
            batch.may_be_written = batch.may_be_written or code in _MAYBE_WRITTEN
            if self._may_retry(batch, now) and self._helps(queue, batch, error):
                self._retry(queue, batch, now, chance, at_once=moved)
            else:
                final = self._final(batch, error, now)
                self._settle(queue, batch, Outcome(error=final, record_errors=answer.record_errors))
        self._fail_unrecognisable(queue)
        self.accumulator.reconsider(queue)

    def written(self, batch: Batch, outcome: Outcome) -> None:
        """The broker has the batch."""
        queue = self._off_wire(batch)
        if queue.sequences is not None:
            queue.sequences.written(batch)
        self._ledger.settle(batch, outcome)
        if queue.waiting:
            self.accumulator.reconsider(queue)

    def lost(self, batch: Batch, error: ClientError, now: float, *, chance: float) -> None:
        """There was no answer, so the batch may be written or not."""
        queue = self._off_wire(batch)
        batch.may_be_written = True
        if batch.outcome is not None:
            self._settle(queue, batch, batch.outcome)
        else:
            batch.last_error = error
            if error.retriable and self._may_retry(batch, now):
                self._retry(queue, batch, now, chance)
            else:
                self._settle(queue, batch, Outcome(error=self._final(batch, error, now)))
        self._fail_unrecognisable(queue)
        self.accumulator.reconsider(queue)

    def spoiled(self, batches: Iterable[Batch], error: ClientError, now: float) -> None:
        """Handling the answer to these batches raised half-way. Batches that were not settled yet fail."""
        for batch in batches:
            if batch.on_wire:
                self.lost(batch, error, now, chance=0.0)
            elif batch.outcome is None and batch.moved is None and batch not in batch.in_queue.waiting:
                queue = batch.in_queue
                batch.may_be_written = True
                self._settle(queue, batch, Outcome(error=error))
                self.accumulator.reconsider(queue)

    def expire(self, now: float) -> None:
        """Fail the batches whose deadline is over."""
        for buffer in list(self.accumulator.unplaced_topics.values()):
            while buffer.unplaced and buffer.unplaced[0].deadline <= now:
                unplaced = buffer.unplaced.popleft()
                late = TimedOut(f"waiting for topic {buffer.name}", now - unplaced.created)
                self._ledger.settle(unplaced, Outcome(error=late))
            if not buffer.unplaced:
                self.accumulator.all_placed(buffer)
        for batch in self._ledger.unsettled():
            if isinstance(batch, UnplacedBatch):
                continue
            if batch.deadline > now:
                break
            self._give_up(batch, self._timed_out(batch, now))

    def next_deadline(self) -> float:
        """The time of the first deadline, for `expire`; infinite if there is none."""
        deadlines = [
            each.unplaced[0].deadline for each in self.accumulator.unplaced_topics.values() if each.unplaced
        ]
        oldest = self._ledger.oldest_queued()
        if oldest is not None:
            deadlines.append(oldest.deadline)
        return min(deadlines, default=inf)

    def fail_all(self, error: ClientError) -> None:
        """Fail all batches that are left: the producer ends."""
        for topic in list(self.accumulator.unplaced_topics):
            self.accumulator.topic_failed(topic, error)
        for batch in self._ledger.unsettled():
            self._give_up(batch, error)

    def fail_queues(self, queues: Iterable[PartitionQueue], error: ClientError) -> None:
        """Fail all batches in these queues: their broker cannot be reached."""
        for queue in queues:
            for batch in list(queue.waiting):
                self._give_up(batch, error)

    def no_producer_id(self, error: ClientError) -> None:
        """No broker gave us a producer id. If the error is final, fail all batches that are not under way."""
        for batch in self._ledger.unsettled():
            if not batch.on_wire and not isinstance(batch, UnplacedBatch):
                batch.last_error = error
                if not error.retriable:
                    self._give_up(batch, error)

    # ---- inside

    def _off_wire(self, batch: Batch) -> PartitionQueue:
        queue = batch.in_queue
        batch.on_wire = False
        queue.on_wire -= 1
        return queue

    def _may_retry(self, batch: Batch, now: float) -> bool:
        return batch.attempts <= self._settings.retries and now < batch.deadline

    def _helps(self, queue: PartitionQueue, batch: Batch, error: BrokerError) -> bool:
        """True if sending the batch again may help."""
        sequences = queue.sequences
        if sequences is not None:
            if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                sequences.refused_in_order(batch)
                return True
            if error.code == ErrorCode.UNKNOWN_PRODUCER_ID:
                sequences.state_lost()
                return not batch.may_be_written
            if error.code == ErrorCode.INVALID_PRODUCER_EPOCH and not batch.may_be_written:
                sequences.state_lost()
                return True
        return error.retriable

    def _retry(
        self, queue: PartitionQueue, batch: Batch, now: float, chance: float, at_once: bool = False
    ) -> None:
        pause = 0.0 if at_once else self._settings.backoff.pause(batch.attempts, chance)
        batch.retry_at = now + pause
        self.accumulator.counters.retries += 1
        queue.put_back(batch)

    def _fail_unrecognisable(self, queue: PartitionQueue) -> None:
        """If the broker has lost the sequence numbers, fail the batches that an earlier attempt may have
        written: with new numbers the broker would write them again."""
        if queue.sequences is None or not queue.sequences.is_state_lost:
            return
        for batch in [one for one in queue.waiting if one.may_be_written]:
            self._give_up(batch, _not_renumbered(batch.last_error, batch))

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        parts = batch.split()
        if queue.sequences is not None:
            queue.sequences.replaced(batch, parts)
        for part in parts:
            queue.put_back(part)
        self._ledger.replace(batch, parts)

    def _settle(self, queue: PartitionQueue, batch: Batch, outcome: Outcome) -> None:
        """Settle a batch that failed."""
        self._ledger.settle(batch, outcome)
        if queue.sequences is not None and not batch.on_wire:
            queue.sequences.buried(batch)

    def _give_up(self, batch: Batch, error: ClientError) -> None:
        queue = batch.in_queue
        if not batch.on_wire:
            queue.remove(batch)
        self._settle(queue, batch, Outcome(error=error))
        self.accumulator.reconsider(queue)

    def _final(self, batch: Batch, error: ClientError, now: float) -> ClientError:
        """The error of a batch that is not sent again: DeliveryTimedOut if only the time ran out, else
        `error`."""
        return self._timed_out(batch, now) if error.retriable and now >= batch.deadline else error

    def _timed_out(self, batch: Batch, now: float) -> DeliveryTimedOut:
        batch.close()
        if batch.attempts:
            advice = "The records may have been written all the same"
        else:
            advice = "Look whether the partition has a leader, and whether the brokers keep up"
        return DeliveryTimedOut(
            f"the delivery of {batch.count} records to {batch.topic}-{batch.partition}",
            now - batch.created,
            cause=batch.last_error,
            advice=advice,
        )


def _not_renumbered(error: ClientError | None, batch: Batch) -> BrokerError:
    """For a batch that an earlier attempt may have written, on a broker that has lost its sequence number."""
    place = f"{batch.topic}-{batch.partition}"
    reason = error.message if error is not None else f"the broker forgot the sequence numbers of {place}"
    return BrokerError(
        f"{reason}; an earlier attempt may have written the batch, so it is not sent again with new numbers",
        code=ErrorCode.UNKNOWN_PRODUCER_ID,
        advice=f"Look whether {place} has the records before you send them again",
    )


def _not_split(error: BrokerError, batch: Batch) -> BrokerError:
    """MESSAGE_TOO_LARGE for a batch of several records that an earlier attempt may have written."""
    return RecordTooLarge(
        f"{error.message}; an earlier attempt may have written the batch, so it is not split and sent again",
        code=error.code,
        advice=f"Look whether {batch.topic}-{batch.partition} has the records before you send them again. To "
        "avoid it, send less at once, or raise max.message.bytes of the topic",
    )
