"""Which batches are not settled yet, the memory they use, and who waits for them. A core.

- Every batch is entered once and settled once: by an answer, by its deadline, or because the producer ends.
- `memory_used` counts a record from the moment it is taken until its batch is settled and off the wire.
- Batches are numbered as they are begun. The parts of a split batch, and the batches that unplaced records
  move into, keep the number of the batch they came from. So a flush waits for all numbers below its own, and
  the lowest number has the next deadline.

Waiters are not called from here but put into `finished`: the sender calls them when it has released the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from klamm.client.counters import ClientCounters
from klamm.client.errors import ClientError
from klamm.client.producer.batches import Batch, FailureNotice, Outcome, Waiter


class Ledger:
    """See the module."""

    def __init__(self, counters: ClientCounters) -> None:
        self.memory_used = 0
        self.next_number = 0
        self.flushed_before = 0
        """Batches with a lower number do not linger."""
        self.finished: list[Waiter] = []
        """Waiters that the sender must call, and then clear."""
        self.on_unseen: Callable[[FailureNotice], None] = _nothing
        """Called when the last reference to a failed batch is dropped and nobody has asked for its outcome,
        on whatever thread that happens."""
        self._counters = counters
        self._unsettled: dict[int, list[Batch]] = {}
        self._flush_waiters: list[tuple[int, Waiter]] = []
        self._room_waiters: list[tuple[int, Waiter]] = []

    @property
    def has_unsettled(self) -> bool:
        return bool(self._unsettled)

    def new_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def enter(self, batch: Batch) -> None:
        self._unsettled.setdefault(batch.number, []).append(batch)

    def settle(self, batch: Batch, outcome: Outcome) -> None:
        """Give a batch its outcome, unless it has one, and give back its memory, unless it is on the wire."""
        if batch.is_open:
            batch.close()
        if batch.outcome is None:
            if outcome.error is not None:
                self._notice(batch, outcome.error)
            batch.outcome = outcome
            self._count(batch, outcome)
            self._remove(batch)
            if batch.waiters:
                batch.was_looked_at()
                self.finished += [waiter for _, waiter in batch.take_waiters()]
            if self._flush_waiters:
                self._check_flushes()
        if not batch.on_wire:
            self._give_back(batch)
            batch.drop_records()

    def refuse(self, batch: Batch, outcome: Outcome) -> None:
        """Settle a batch that was never entered: it stands for one record whose partition does not exist."""
        batch.close()
        batch.count = 1
        if outcome.error is not None:
            self._notice(batch, outcome.error)
        batch.outcome = outcome
        self._counters.send_errors += 1

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """A batch was split into `parts`, which have its records in order."""
        for part in parts:
            self.enter(part)
            self.memory_used += part.memory
        self.moved(batch, [(part, index) for part in parts for index in range(part.count)])

    def moved(self, batch: Batch, places: list[tuple[Batch, int]]) -> None:
        """The records of a batch moved: record i to `places[i]`, whose batch is entered already."""
        batch.close()
        self._remove(batch)
        self._give_back(batch)
        batch.drop_records()
        batch.move(places)
        self._check_flushes()

    def unsettled(self) -> Iterator[Batch]:
        """All batches that are not settled, the oldest first. They may be settled during the iteration."""
        for number in list(self._unsettled):
            yield from tuple(self._unsettled.get(number, ()))

    def oldest_queued(self) -> Batch | None:
        """The oldest batch that is in a queue or was taken from one: it has the first deadline."""
        for batches in self._unsettled.values():
            for batch in batches:
                if batch.queue is not None:
                    return batch
        return None

    # ---- room

    def add_room_waiter(self, most_used: int, waiter: Waiter) -> None:
        """Put `waiter` into `finished` once at most `most_used` bytes are in use."""
        self._room_waiters.append((most_used, waiter))
        self._check_room()

    def drop_room_waiter(self, waiter: Waiter) -> None:
        """Take a waiter back that was not called yet."""
        self._room_waiters = [one for one in self._room_waiters if one[1] is not waiter]

    # ---- flushing

    def begin_flush(self) -> int:
        """End the linger time of all batches. `is_flushed` asks about the batches below the ticket."""
        self.flushed_before = self.next_number
        return self.next_number

    def is_flushed(self, ticket: int) -> bool:
        """True if all batches are settled that were begun before the ticket was given."""
        oldest = next(iter(self._unsettled), None)
        return oldest is None or oldest >= ticket

    def add_flush_waiter(self, ticket: int, waiter: Waiter) -> None:
        """Put `waiter` into `finished` when all batches before the ticket are settled; at once if they
        are."""
        self._flush_waiters.append((ticket, waiter))
        self._check_flushes()

    def drop_flush_waiter(self, waiter: Waiter) -> None:
        """Take a waiter back that was not called yet."""
        self._flush_waiters = [one for one in self._flush_waiters if one[1] is not waiter]

    def count_waiting(self) -> None:
        """Update the counters of waiting records and used memory."""
        self._counters.buffer_bytes = self.memory_used
        self._counters.records_waiting = sum(
            len(batch.values) if batch.is_open else batch.count for batch in self.unsettled()
        )

    # ---- inside

    def _check_flushes(self) -> None:
        waiting = self._flush_waiters
        self._flush_waiters = [one for one in waiting if not self.is_flushed(one[0])]
        self.finished += [waiter for ticket, waiter in waiting if self.is_flushed(ticket)]

    def _notice(self, batch: Batch, error: ClientError) -> None:
        place = f"{batch.topic}-{batch.partition}" if batch.partition >= 0 else batch.topic
        batch.notice = FailureNotice(place, batch.count, error, self.on_unseen)

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        counters = self._counters
        if outcome.error is not None:
            counters.send_errors += batch.count
        else:
            counters.records_sent += batch.count
            counters.batches_sent += 1
            counters.bytes_sent += len(batch.data) if batch.data is not None else 0

    def _remove(self, batch: Batch) -> None:
        batches = self._unsettled[batch.number]
        batches.remove(batch)
        if not batches:
            del self._unsettled[batch.number]

    def _give_back(self, batch: Batch) -> None:
        self.memory_used -= batch.memory
        batch.memory = 0
        if self._room_waiters:
            self._check_room()

    def _check_room(self) -> None:
        waiting, used = self._room_waiters, self.memory_used
        self._room_waiters = [one for one in waiting if used > one[0]]
        self.finished += [waiter for most_used, waiter in waiting if used <= most_used]


def _nothing(notice: FailureNotice) -> None:
    pass
