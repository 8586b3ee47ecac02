"""What `send` returns: a delivery, which ends with where the record was written, or with an error. A core.

One is made for every record, so a delivery is only two references: a batch, and an index in it. All else is
read from the batch when somebody asks. The two faces wait differently: deliveries of the asyncio producer are
awaited, those of the plain producer have a `result` that blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Self

from klamm.client.errors import ClientError, ClientMisused
from klamm.client.producer.batches import Batch, Outcome, Waiter
from klamm.client.results import SentRecord

_log = logging.getLogger("klamm.client.producer")


class BatchDelivery:
    """A record on its way. Ends in a SentRecord or a ClientError."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __repr__(self) -> str:
        batch, index = self._place()
        outcome = batch.outcome
        if outcome is None:
            return f"<Delivery to {batch.topic}: on its way>"
        if outcome.error is not None:
            return f"<Delivery to {batch.topic}: {type(outcome.error).__name__}>"
        return f"<Delivery to {batch.topic}-{batch.partition}: offset {outcome.base_offset + index}>"

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        return self._outcome() is not None

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(delivery)` when the record is done, at once if it is.

        It is called on the client's thread (with asyncio: on the loop) and must not block. What it raises is
        logged.
        """
        self._batch.add_waiter(self._index, DoneCallback(callback, self))

    def remove_done_callback(self, callback: Callable[[Self], object]) -> int:
        """Take back a callback that was not called yet; returns how often it had been added."""
        count = 0
        while self._batch.drop_waiter(self._index, DoneCallback(callback, self)):
            count += 1
        return count

    def cancelled(self) -> bool:
        """Always False: a record that was taken is sent. It is here because `asyncio.wait` asks for it."""
        return False

    @property
    def _condition(self) -> NoReturn:
        raise not_a_future()

    def _outcome(self) -> Outcome | None:
        batch = self._batch
        return batch.outcome if batch.moved is None else self._place()[0].outcome

    def _place(self) -> tuple[Batch, int]:
        """The batch and the index where the record is now. Not kept, because several threads may ask."""
        batch, index = self._batch, self._index
        while batch.moved is not None:
            batch, index = batch.moved[index]
        return batch, index

    def _add_waiter(self, waiter: Waiter) -> None:
        self._batch.add_waiter(self._index, waiter)

    def _drop_waiter(self, waiter: Waiter) -> None:
        self._batch.drop_waiter(self._index, waiter)

    def _error(self, outcome: Outcome) -> ClientError | None:
        batch, index = self._place()
        batch.was_looked_at()
        return outcome.error_of(index)

    def _sent(self, outcome: Outcome) -> SentRecord:
        """Where the record was written; raises its error if it failed."""
        if outcome.error is not None:
            error = self._error(outcome)
            assert error is not None
            # All records of a batch share the error: without this its traceback would grow with each raise.
            raise error.with_traceback(None)
        batch, index = self._batch, self._index
        if batch.moved is not None:
            batch, index = self._place()
        offset, timestamp, _, _ = outcome
        place = (
            batch.partition,
            offset + index if offset >= 0 else -1,
            timestamp if timestamp >= 0 else batch.timestamps[index],
            batch.topic,
        )
        return tuple.__new__(SentRecord, place)  # called for each record: half the cost of calling the class


def not_a_future() -> ClientMisused:
    """For `concurrent.futures.wait` and `as_completed`, which use the private attributes of a Future."""
    return ClientMisused(
        "a delivery is not a concurrent.futures.Future, so concurrent.futures cannot wait for it",
        advice="Call result() of each delivery, or producer.flush() for all of them; or add_done_callback()",
    )


class SentRange(NamedTuple):
    """Where consecutive records were written: `records` of them, from `base_offset` on (-1 if not known)."""

    partition: int
    base_offset: int
    records: int


class RangesDelivery:
    """The rows of one `send_arrow` on their way. Ends in a list of SentRange or a ClientError.

    If some batches failed, it ends in the error of the first of them; the other batches may be written.
    """

    __slots__ = ("__weakref__", "_batches", "_failure", "_feed_waiters", "_is_fed", "_place")

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._place = 0
        self._is_fed = False
        self._failure: ClientError | None = None
        self._feed_waiters: list[RangesWaiter] = []

    def feed(self, batch: Batch) -> None:
        """Add a batch with the next rows."""
        self._batches.append(batch)

    def end_feed(self, failure: ClientError | None = None) -> None:
        """All rows are in batches now, or, with `failure`, the rest of them failed."""
        self._is_fed = True
        self._failure = failure
        waiters, self._feed_waiters = self._feed_waiters, []
        for waiter in waiters:
            waiter()

    def done(self) -> bool:
        """Whether all records were acknowledged or have failed."""
        return self._undone() is None and self._is_fed

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(delivery)` when all records are done, at once if they are."""
        self._add_waiter(DoneCallback(callback, self))

    def remove_done_callback(self, callback: Callable[[Self], object]) -> int:
        """Take back a callback that was not called yet; returns how often it had been added."""
        wanted = DoneCallback(callback, self)
        undone = self._undone()
        waiters = [*self._feed_waiters, *(waiter for _, waiter in (undone.waiters if undone else ()))]
        found = [one for one in waiters if isinstance(one, RangesWaiter) and one.calls(wanted)]
        for waiting in found:
            waiting.drop()
        return len(found)

    def cancelled(self) -> bool:
        """Always False: records that were taken are sent. It is here because `asyncio.wait` asks for it."""
        return False

    @property
    def _condition(self) -> NoReturn:
        raise not_a_future()

    def _undone(self) -> Batch | None:
        """The first batch that is not settled; of a split batch, the first part that is not."""
        for place in range(self._place, len(self._batches)):
            for batch in _parts_of(self._batches[place]):
                if batch.outcome is None:
                    self._place = place
                    return batch
        return None

    def _add_waiter(self, waiter: Waiter) -> RangesWaiter:
        """Call `waiter` when all records are done. `drop` of the returned object takes the waiter back."""
        waiting = RangesWaiter(self, waiter)
        waiting()
        return waiting

    def _error(self) -> ClientError | None:
        parts = [part for batch in self._batches for part in _parts_of(batch)]
        for part in parts:
            part.was_looked_at()
        outcomes = [part.outcome for part in parts]
        errors = (outcome.error for outcome in outcomes if outcome is not None)
        return next((error for error in errors if error is not None), self._failure)

    def _sent(self) -> list[SentRange]:
        error = self._error()
        if error is not None:
            raise error.with_traceback(None)
        return [
            SentRange(part.partition, part.outcome.base_offset, part.count)
            for batch in self._batches
            for part in _parts_of(batch)
            if part.outcome is not None
        ]


def _parts_of(batch: Batch) -> Iterator[Batch]:
    """The batch itself, or the parts it was split into."""
    if batch.moved is None:
        yield batch
    else:
        for part in dict.fromkeys(part for part, _ in batch.moved):
            yield from _parts_of(part)


class RangesWaiter:
    """Waits for one batch after the other, so that it also waits for the parts of a split batch. It is called
    whenever a batch is settled, and when all rows are fed."""

    __slots__ = ("_batch", "_delivery", "_waiter")

    def __init__(self, delivery: RangesDelivery, waiter: Waiter) -> None:
        self._delivery = delivery
        self._waiter: Waiter | None = waiter
        self._batch: Batch | None = None

    def __call__(self) -> None:
        if self._waiter is None:
            return
        self._batch = self._delivery._undone()
        if self._batch is not None:
            self._batch.add_waiter(0, self)
        elif self._delivery._is_fed:
            self._waiter()
        else:
            self._delivery._feed_waiters.append(self)

    def calls(self, waiter: Waiter) -> bool:
        """True if `waiter` is the one that is called when all records are done."""
        return self._waiter == waiter

    def drop(self) -> None:
        """Take the waiter back."""
        self._waiter = None
        if self._batch is not None:
            self._batch.drop_waiter(0, self)
        with suppress(ValueError):
            self._delivery._feed_waiters.remove(self)


class DoneCallback:
    """A user's callback. An exception that it raises is logged, and does not reach the client."""

    __slots__ = ("_callback", "_delivery")

    def __init__(self, callback: Callable[[Any], object], delivery: object) -> None:
        self._callback = callback
        self._delivery = delivery

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DoneCallback):
            return NotImplemented
        return self._callback == other._callback and self._delivery is other._delivery

    def __hash__(self) -> int:
        return hash((self._callback, id(self._delivery)))

    def __call__(self) -> None:
        try:
            self._callback(self._delivery)
        except Exception:
            _log.exception("a delivery callback failed: %r", self._callback)
