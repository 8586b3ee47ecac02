"""A lease: what a consumer has handed out of one partition, until it is finished or put back. A core.

Polls, columns, iteration and the claims of a session all hand out by leases. A partition has at most one at a
time, and what lies before it is finished. So these hold at any moment:

    finished = where the finished part of the lease ends, or the position if there is no lease
    position = where the lease ends: the next offset to lease

A lease ends once, in one of two ways. Finished: everything that the user was given counts as handled, and may
be committed. Put back: what is not finished is leased again by the next poll. A seek, a reset and the
loss of the partition end a lease as well; its records are then neither finished nor put back. A position
that must move because the broker does not have its offset waits until the lease has ended; if the log was
cut, the lease keeps what the user was given.

Records are given to the user all at once, as columns, or one by one. Of those that are given one by one, all
but the latest are finished: the user came back for the next.

A lease begins before its first record is decoded, since the position moves with every decoded batch, and the
lock is not held meanwhile. As long as it is being filled, the user was given nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

from klamm.client.results import Record
from klamm.records.fetched import FetchedRecords

if TYPE_CHECKING:
    from klamm.client.consumer.partition_state import BufferedFetch, PartitionState


class Place(NamedTuple):
    """An offset, and the leader epoch of what lies before it."""

    offset: int
    epoch: int


_NO_RECORDS: Iterator[Record] = iter(())


class Lease:
    """Made and ended by `HandOut`, under the lock of its positions."""

    __slots__ = (
        "_done",
        "fetch",
        "fetched",
        "is_being_filled",
        "is_interrupted",
        "iterator",
        "records",
        "start",
        "state",
    )

    def __init__(
        self,
        state: PartitionState,
        start: Place,
        *,
        fetched: Sequence[FetchedRecords] = (),
    ) -> None:
        self.state = state
        self.start = start
        """Where the lease begins; everything before is finished."""
        self.records: Sequence[Record] = ()
        """What is given one by one. What is given all at once belongs to the user, and is not kept here."""
        self.iterator: Iterator[Record] = _NO_RECORDS
        """The records that the user has not been given yet."""
        self.fetch: BufferedFetch | None = None
        """The fetch that `records` come from."""
        self.fetched = fetched
        """Bytes to make columns of."""
        self.is_interrupted = False
        """True if the user is given no further record: a rebalance is due, say, or the lease has ended."""
        self.is_being_filled = False
        """True while records are decoded for this lease: the position moves, but nothing is given yet."""
        self._done = start

    def give_one_by_one(self, records: Sequence[Record], fetch: BufferedFetch | None) -> None:
        """The lease was filled with `records`, which come from `fetch`."""
        self.records = records
        self.iterator = iter(records)
        self.fetch = fetch

    def give_no_more(self) -> None:
        """Leave out of the lease what the user has not been given yet."""
        self.is_interrupted = True
        self.records = self.records[: self.given()]
        self.iterator = _NO_RECORDS

    def done(self, record: Record) -> None:
        """The user says that `record`, and all before it, are finished."""
        self._done = max(self._done, Place(record.offset + 1, record.leader_epoch))

    def given(self) -> int:
        """How many of `records` the user has been given."""
        return len(self.records) - length_hint(self.iterator)

    def place_after(self, count: int) -> Place:
        """Where the first `count` of `records` end."""
        if not count:
            return self.start
        last = self.records[count - 1]
        return Place(last.offset + 1, last.leader_epoch)

    def given_place(self, end: Place) -> Place:
        """The place after the last record that the user was given, of a lease that ends at `end`."""
        if self.is_being_filled:
            return self.start
        given = self.given()
        return end if given == len(self.records) else self.place_after(given)

    def finished_place(self, end: Place) -> Place:
        """Where the finished part of a lease that ends at `end` ends, before the user asks for more
        records."""
        return max(self.place_after(max(self.given() - 1, 0)), min(self._done, self.given_place(end)))
