"""Sequence numbers of an idempotent producer in one partition, so that no batch is written twice. A core.

A broker takes the batches of a producer id and epoch only in the order of their sequences, and recognises
each of the last five when it comes again. What this module keeps:

- Batches get consecutive sequences in the order they are first sent (wrapping to 0 after 2^31-1), and keep
  them however often they are sent again. `numbered` holds them in that order until they are settled.
- A batch that failed, or whose time was up, may leave a hole in the sequence, unless the broker has written
  it after all. It stays in the list (a dead batch has an outcome) until that is known: if a later batch is
  written, there is no hole.
- Until then no new batch gets a number. If no live batch is left that could show it, or the oldest live batch
  is refused as out of order, which proves that it is not written, then the epoch is raised and the live
  batches get new numbers from 0. That is safe: batches after one that is not written are not written either,
  and the broker refuses late requests of the old epoch.

- The first batch of an epoch is sent alone. A broker that does not know a producer yet takes any sequence: if
  it refused the first batch with a retriable error and took the second, their order would be lost.

The epoch is raised here and not asked for, as KIP-360 has it for producers without transactions. Brokers know
epochs per partition, so other partitions go on undisturbed. When epochs are used up a new id is needed.
"""

from __future__ import annotations

from klamm.client.producer.batches import Batch
from klamm.records.batch import MAX_SEQUENCE, NO_PRODUCER_ID

MAX_EPOCH = 2**15 - 1


class ProducerIdentity:
    """The id that the cluster gave to this producer, if it has one."""

    __slots__ = ("producer_id",)

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID

    @property
    def is_wanted(self) -> bool:
        return self.producer_id == NO_PRODUCER_ID

    def used_up(self, producer_id: int) -> None:
        """All epochs of `producer_id` are used in some partition: ask for another id."""
        if self.producer_id == producer_id:
            self.producer_id = NO_PRODUCER_ID


class PartitionSequences:
    """The numbers of one partition."""

    __slots__ = (
        "_identity",
        "epoch",
        "is_begun",
        "is_state_lost",
        "next_sequence",
        "numbered",
        "producer_id",
        "renumbering",
    )

    def __init__(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self.producer_id = NO_PRODUCER_ID
        self.epoch = 0
        self.is_begun = False
        """True if the broker has written a batch of this epoch."""
        self.next_sequence = 0
        self.numbered: list[Batch] = []
        """Batches that have a number and are not written yet, in order; dead ones have an outcome."""
        self.renumbering = False
        """True if the epoch must be raised before any batch is sent."""
        self.is_state_lost = False
        """True if that is because the broker does not know the numbers of this epoch any more, so that it
        would not recognise a batch that it has written."""

    @property
    def lacks_id(self) -> bool:
        """True if there is no producer id, so that `may_send` returns False."""
        return self.producer_id == NO_PRODUCER_ID

    def may_send(self, batch: Batch, on_wire: int) -> bool:
        """True if `batch`, the next in the queue, may be sent now while `on_wire` others are under way."""
        if self.renumbering or (self.numbered and self._has_hole()):
            if on_wire:
                return False
            if (self.renumbering or not self._has_live()) and not self._raise_epoch():
                return False
        if self.producer_id == NO_PRODUCER_ID and not self._adopt_id():
            return False
        if batch.sequence >= 0:
            # The batch is sent again: one at a time, so that it does not overtake an earlier batch.
            return on_wire == 0
        return self.is_begun or on_wire == 0

    def number(self, batch: Batch) -> None:
        """Give a batch its sequence number, unless it has one. `may_send` returned True before."""
        if batch.sequence >= 0:
            return
        self._stamp(batch, self.next_sequence)
        self.next_sequence = _after(self.next_sequence, batch.count)
        self.numbered.append(batch)

    def written(self, batch: Batch) -> None:
        """The broker has written the batch, so there is no hole before it."""
        if batch in self.numbered:
            self.is_begun = True
            place = self.numbered.index(batch)
            self.numbered[: place + 1] = [one for one in self.numbered[:place] if one.outcome is None]

    def buried(self, batch: Batch) -> None:
        """A batch failed, and no answer about it can come any more. An empty batch takes its place in
        `numbered`, as the hole that it may have left: the batch itself must be freed when its deliveries are,
        so that an error that nobody has looked at is logged."""
        if batch in self.numbered:
            hole = Batch(
                batch.topic, batch.partition, batch.order, batch.number, batch.created, batch.deadline
            )
            hole.outcome = batch.outcome
            self.numbered[self.numbered.index(batch)] = hole

    def refused_in_order(self, batch: Batch) -> bool:
        """The broker refused a batch as out of order. Returns whether that proves a hole right before it."""
        first_live = next((one for one in self.numbered if one.outcome is None), None)
        if first_live is batch:
            self.renumbering = True
        return self.renumbering

    def state_lost(self) -> None:
        """The broker does not know this producer any more, or knows a later epoch of it."""
        self.renumbering = True
        self.is_state_lost = True

    def replaced(self, batch: Batch, parts: list[Batch]) -> None:
        """A batch was split: its parts share its sequence numbers."""
        if batch not in self.numbered:
            return
        place = self.numbered.index(batch)
        sequence = batch.sequence
        for part in parts:
            self._stamp(part, sequence)
            part.producer_id, part.producer_epoch = batch.producer_id, batch.producer_epoch
            sequence = _after(sequence, part.count)
        self.numbered[place : place + 1] = parts

    # ---- inside

    def _has_hole(self) -> bool:
        return any(one.outcome is not None for one in self.numbered)

    def _has_live(self) -> bool:
        return any(one.outcome is None for one in self.numbered)

    def _raise_epoch(self) -> bool:
        """Start a new epoch. Returns False if that needs a new producer id, and there is none yet."""
        if self.epoch >= MAX_EPOCH:
            self._identity.used_up(self.producer_id)
            self.producer_id = NO_PRODUCER_ID
            return self._adopt_id()
        self.epoch += 1
        self._number_anew()
        return True

    def _adopt_id(self) -> bool:
        if self._identity.is_wanted:
            return False
        self.producer_id = self._identity.producer_id
        self.epoch = 0
        self._number_anew()
        return True

    def _number_anew(self) -> None:
        self.renumbering = False
        self.is_state_lost = False
        self.is_begun = False
        self.numbered = [one for one in self.numbered if one.outcome is None]
        self.next_sequence = 0
        for batch in self.numbered:
            self._stamp(batch, self.next_sequence)
            self.next_sequence = _after(self.next_sequence, batch.count)

    def _stamp(self, batch: Batch, sequence: int) -> None:
        batch.producer_id = self.producer_id
        batch.producer_epoch = self.epoch
        batch.sequence = sequence


def _after(sequence: int, count: int) -> int:
    """The sequence after `count` records: MAX_SEQUENCE is followed by 0."""
    return (sequence + count) & MAX_SEQUENCE
