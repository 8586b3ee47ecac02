"""How the asyncio client and the plain client poll: as records, as columns, or record by record.

Polls are written once, as coroutines, and wait by a `Waiting`. That of the asyncio client suspends the task.
That of the plain client blocks the thread, so that the coroutine never suspends and can be run to its end at
once (`run_now`).
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from klamm.client.arguments import as_count, as_timeout
from klamm.client.consumer.hand_out import HandOut
from klamm.client.consumer.lease import Lease
from klamm.client.errors import ClientMisused
from klamm.client.guard import ClientGuard
from klamm.client.results import Record, TopicPartition
from klamm.model.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.consumer.engine import ConsumerEngine

T = TypeVar("T")

MAX_COLUMNS_BYTES = 16 * 1024 * 1024
"""How many fetched bytes one poll_arrow takes at most, or one fetch if that is larger: their columns are made
in a few milliseconds, and are long enough that the cost of the call does not matter."""

SHORTEST_WAIT_S = 0.001
"""A poll with a shorter time-out may end before it waits at all, so it lets the loop run first."""


class Columns(NamedTuple):
    """The columns that were made of leased bytes."""

    batch: pyarrow.RecordBatch | None
    next_offsets: dict[TopicPartition, int]
    """The next offset to read of each partition that was reached."""
    failure: KafkaError | None = None
    """Why there are no columns: the first batch of the first lease cannot be decoded."""


class Waiting(Protocol):
    """How one of the two clients waits."""

    async def give_way(self) -> None:
        """Let the loop read sockets, however fast the user polls."""
        ...

    async def join(self, timeout: float | None) -> None:
        """Take part in the group, as `ConsumerEngine.join` does."""
        ...

    async def news(self, timeout: float | None) -> None:
        """Wait until a poll may have something to return, or must join, or the time is over. May return
        early."""
        ...

    async def columns(self, leases: Sequence[Lease], limit: int | None) -> Columns:
        """Run `make_columns` where it does not hold up the loop."""
        ...


class Polling:
    """The polls of one consumer, one at a time."""

    def __init__(self, engine: ConsumerEngine, guard: ClientGuard, waiting: Waiting) -> None:
        self._engine = engine
        self._guard = guard
        self._waiting = waiting
        self._under_way = threading.Lock()

    async def poll(self, timeout: float | None, max_records: int | None) -> list[Record]:
        engine = self._engine
        limit = engine.max_poll_records if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        self._enter()
        try:
            if engine.records.has_news() or (seconds is not None and seconds < SHORTEST_WAIT_S):
                await self._waiting.give_way()
            while True:
                await self._begin(deadline)
                try:
                    records = engine.records.take(limit)
                    if records:
                        engine.counters.records_received += len(records)
                        return records
                except BaseException:  # Ctrl-C: nobody gets them
                    engine.records.put_back_all()
                    raise
                if not await self._wait(deadline):
                    return []
        finally:
            self._under_way.release()

    async def poll_arrow(self, timeout: float | None, max_records: int | None) -> pyarrow.RecordBatch:
        engine = self._engine
        limit = None if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        self._enter()
        try:
            await self._waiting.give_way()
            while True:
                await self._begin(deadline)
                leases = engine.records.lease_bytes(MAX_COLUMNS_BYTES)
                if leases:
                    batch = await lease_as_columns(engine.records, leases, limit, self._waiting)
                    if batch is not None:
                        engine.counters.records_received += batch.num_rows
                        return batch
                if not await self._wait(deadline):
                    return (await self._waiting.columns([], None)).batch
        finally:
            self._under_way.release()

    async def next_lease(self) -> Lease:
        """For iteration: the next records of some partition."""
        engine = self._engine
        self._enter()
        try:
            await self._waiting.give_way()
            while True:
                await self._begin(None)
                lease = engine.records.lease_next(engine.max_poll_records)
                if lease is not None:
                    engine.counters.records_received += len(lease.records)
                    return lease
                await self._wait(None)
        finally:
            self._under_way.release()

    # ---- inside

    def _enter(self) -> None:
        """Refuse a second poll at the same time: a poll finishes the records of the one before."""
        self._guard.check()
        self._engine.check_may_poll()
        if not self._under_way.acquire(blocking=False):
            raise ClientMisused(
                "the consumer cannot poll: another of its polls is under way",
                advice="Poll in one task or thread, use sessions(), or make a consumer for each",
            )

    async def _begin(self, deadline: float | None) -> None:
        """Begin a round of a poll: finish what was given, and join the group if a rebalance is due."""
        self._guard.check()
        engine = self._engine
        engine.begin_poll()
        while engine.is_rebalance_due:
            await self._waiting.join(None if deadline is None else max(0.0, deadline - monotonic()))
            if deadline is not None and monotonic() >= deadline:
                break

    async def _wait(self, deadline: float | None) -> bool:
        """Wait for something to return; False if the time is over. Raises an error that waiting cannot
        remove."""
        self._engine.raise_trouble()
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            return False
        await self._waiting.news(left)
        return True


async def lease_as_columns(
    records: HandOut, leases: Sequence[Lease], limit: int | None, waiting: Waiting
) -> pyarrow.RecordBatch | None:
    """Hand leased bytes out as columns; None if there are no records in them, or they are unreadable.

    If the caller is cancelled or interrupted meanwhile, the leases are put back.
    """
    try:
        columns = await waiting.columns(leases, limit)
        if columns.failure is not None:
            records.columns_failed(leases[0], columns.failure)
        records.columns_made(leases, columns.next_offsets)
    except BaseException:
        records.put_back(*leases)
        raise
    return columns.batch if columns.batch is not None and columns.batch.num_rows else None


def make_columns(leases: Sequence[Lease], limit: int | None) -> Columns:
    """Leased bytes as one RecordBatch; an empty one without leases. May run in any thread. Needs
    klamm[arrow]."""
    from klamm.records.arrow import to_record_batch

    fetched = [each for lease in leases for each in lease.fetched]
    try:
        return Columns(*to_record_batch(fetched, limit))
    except KafkaError as failure:
        if len(fetched) == 1:
            return Columns(None, {}, failure)
    # One of them is broken, and everything before it held no records. Is it the first?
    try:
        return Columns(*to_record_batch(fetched[:1], limit))
    except KafkaError as failure:
        return Columns(None, {}, failure)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a poll of the plain client awaited something that does not block")
