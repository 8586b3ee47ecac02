"""Sessions and claims, as far as both faces have them alike: from one rebalance to the next.

While a session lives, a task on the consumer's loop watches for the rebalance that ends it, tells the group
that the user is alive, and gives the workers their time to finish a record. It is over when a rebalance
is due, when the user leaves it, or when the consumer is closed. From then on no claim hands out another
record.

The user counts as alive unless every claim with a record in work is with the same record still: that is what
max.poll.interval.ms is for here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection
from contextvars import Context
from copy import copy
from time import monotonic
from typing import TYPE_CHECKING

from klamm.client.arguments import as_count, as_timeout
from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.consumer.group.offsets import listed
from klamm.client.consumer.polling import MAX_COLUMNS_BYTES, Waiting, lease_as_columns
from klamm.client.errors import ClientMisused
from klamm.client.logs import client_logger
from klamm.client.results import Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.consumer.engine import ConsumerEngine

DRAIN = "drain"
CANCEL = "cancel"

DRAIN_SHARE = 0.8
"""How much of the time that a rebalance waits for a member may go into finishing records, by default. The
rest is for commits and the join. When the consumer is closed, the same share of its time-out."""

LOOKS_PER_POLL_INTERVAL = 10
MOST_SECONDS_BETWEEN_LOOKS = 1.0
"""How often the session checks that the workers make progress."""


def drain_seconds(engine: ConsumerEngine, on_revoke: str, drain_timeout: float | None) -> float:
    """How long workers may take to finish what they work on; checks what the user asked for."""
    if on_revoke not in (DRAIN, CANCEL):
        raise ClientMisused(f"on_revoke={on_revoke!r} is refused", advice=f'Say "{DRAIN}" or "{CANCEL}"')
    longest = engine.config.seconds("max.poll.interval.ms")
    seconds = as_timeout(drain_timeout, "drain_timeout")
    if seconds is None:
        return longest * DRAIN_SHARE
    if seconds >= longest:
        raise ClientMisused(
            f"drain_timeout={seconds} is refused: a rebalance waits for {longest:g} s at most",
            advice="Give a shorter one, or raise max_poll_interval_ms",
        )
    return seconds


async def next_round(engine: ConsumerEngine, is_after_another: bool) -> bool:
    """Wait for a rebalance to be due, take part in it, and say whether there is a session to have."""
    group, _ = engine.need_group("sessions()")
    if not engine.subscription.is_by_topic:
        raise ClientMisused(
            "sessions() needs a subscription, and the consumer has none", advice="Call subscribe() first"
        )
    loop = asyncio.get_running_loop()
    while is_after_another and not engine.is_leaving and not engine.is_rebalance_due:
        group.polled(loop.time())
        await engine.wait_for_rebalance(MOST_SECONDS_BETWEEN_LOOKS)
    if not engine.is_leaving:
        await engine.join(None, until_stable=True)
    return not engine.is_leaving


class BaseClaim:
    """One partition within a session."""

    def __init__(self, session: BaseSession, reader: ClaimReader) -> None:
        self.topic: str = reader.partition.topic
        self.partition: int = reader.partition.partition
        self._session = session
        self._reader = reader
        self._moving = threading.Lock()
        """Guards the reader: another thread that leaves the session may put back what the worker has."""

    def __repr__(self) -> str:
        return f"<Claim {self._reader.partition}{' ended' if self.ended else ''}>"

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition, of which `topic` and `partition` are the parts."""
        return self._reader.partition

    @property
    def ended(self) -> bool:
        """Whether nothing more is handed out, because a rebalance is due or the session was left."""
        return self._reader.is_ended

    def done(self, record: Record) -> None:
        """Count `record`, and all before it, as finished without asking for the next."""
        self._reader.done(record)

    # ---- for the faces

    def _worker_came_back(self) -> None:
        """The caller asked for more: from now on it is the worker of this claim, and nothing is in work."""
        raise NotImplementedError

    def _is_over(self) -> bool:
        """True when nothing more will be handed out. The plain claim may raise ClaimRevoked instead."""
        return self.ended

    async def _poll(self, max_records: int | None, timeout: float | None) -> list[Record]:
        limit = None if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        await self._come_back()
        while True:
            with self._moving:
                records = self._reader.take(limit)
            if records:
                self._session._count(len(records))
                return records
            if not await self._wait(deadline):
                return []

    async def _poll_arrow(self, max_records: int | None, timeout: float | None) -> pyarrow.RecordBatch:
        limit = None if max_records is None else as_count(max_records)
        seconds = as_timeout(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        waiting, records = self._session._waiting, self._session._engine.records
        await self._come_back()
        while True:
            with self._moving:
                leases = self._reader.lease_bytes(MAX_COLUMNS_BYTES)
            if leases:
                try:
                    batch = await lease_as_columns(records, leases, limit, waiting)
                except BaseException:
                    self._put_back()
                    self._worker_came_back()
                    raise
                if batch is not None:
                    self._session._count(batch.num_rows)
                    return batch
            if not await self._wait(deadline):
                return (await waiting.columns([], None)).batch

    async def _next_record(self) -> Record | None:
        """The first record of another lease; None when the claim has ended."""
        await self._come_back()
        while True:
            with self._moving:
                count = self._reader.read()
                record = self._reader.next_at_hand()
            if record is not None:
                self._session._count(count)
                return record
            if not await self._wait(None):
                return None

    async def _come_back(self) -> None:
        """The worker asks for more: what it was given is finished."""
        self._session._check_entered()
        self._finish()
        await self._session._waiting.give_way()

    def _finish(self) -> None:
        """Nothing is in work any more; a session that ends may be waiting for that."""
        with self._moving:
            self._reader.finish()
            self._worker_came_back()

    async def _wait(self, deadline: float | None) -> bool:
        """Wait for something to hand out; False at the end, and when the time is over."""
        self._finish()  # what was leased last held no records, or was interrupted before the first
        left = None if deadline is None else deadline - monotonic()
        if self._is_over() or (left is not None and left <= 0):
            return False
        await self._session._wait_for_news(self._reader, left)
        return True

    def _put_back(self) -> None:
        with self._moving:
            self._reader.put_back()


class BaseSession:
    """One round of a group's life."""

    claims: Collection[BaseClaim]

    def __init__(self, engine: ConsumerEngine, waiting: Waiting, drain_seconds: float) -> None:
        group, _ = engine.need_group("sessions()")
        self._engine = engine
        self._group = group
        self._waiting = waiting
        self._drain_seconds = drain_seconds
        self._generation = group.generation
        self._readers = tuple(
            ClaimReader(engine.records, partition, engine.max_poll_records)
            for partition in sorted(engine.positions.assignment())
        )
        self._is_entered = False
        self._is_over = False
        self._watching: asyncio.Task[None] | None = None
        self._waiters: dict[ClaimReader, asyncio.Future[None]] = {}
        self._logger = client_logger("sessions", engine.client_id)

    def __repr__(self) -> str:
        names = ", ".join(str(claim.topic_partition) for claim in self.claims)
        return f"<Session of generation {self.generation}: {names or 'no partitions'}>"

    @property
    def generation(self) -> int:
        """The number of the group's rebalance that this session follows."""
        return self._generation

    @property
    def ended(self) -> bool:
        """Whether a rebalance is due, or the session was left: its claims hand out nothing more."""
        return self._is_over

    # ---- for the faces

    def _stop_overdue(self) -> None:
        """Workers are still busy after `drain_seconds`: stop those that can be stopped."""

    async def _drain(self) -> None:
        """The consumer is being closed: wait for the workers."""

    async def _wait_for_news(self, reader: ClaimReader, timeout: float | None) -> None:
        """Until asking the reader again makes sense, or the time is over."""
        raise NotImplementedError

    def _count(self, records: int) -> None:
        self._engine.counters.records_received += records

    def _check_entered(self) -> None:
        if not self._is_entered:
            raise ClientMisused(
                "a claim is read before its session is entered",
                advice="Write `with session:`, or `async with session:`, around it",
            )

    async def _commit(self, claims: Collection[BaseClaim]) -> None:
        """On the loop: commit what is finished of these."""
        _, commits = self._engine.need_group("commit()")
        finished = self._engine.positions.committable()
        chosen = {claim.topic_partition for claim in claims}
        await commits.commit({each: offset for each, offset in finished.items() if each in chosen})

    # ---- from enter to exit, on the loop

    def _enter(self) -> None:
        if self._is_entered or self._is_over:
            raise ClientMisused("a session is entered once", advice="Take the next one from sessions()")
        self._engine.begin_session(self)
        self._is_entered = True
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch(), name="klamm-session", context=Context())

    def _end(self) -> None:
        """Hand out nothing more. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        for reader in self._readers:
            reader.end()
        for waiter in self._waiters.values():
            _wake(waiter)

    async def _close(self, timeout: float | None = None) -> None:
        """The consumer is being closed: wait for the workers, and put back what they have not finished."""
        self._end()
        if timeout is not None:
            self._drain_seconds = min(self._drain_seconds, timeout * DRAIN_SHARE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._drain()
        await self._exit()

    async def _exit(self) -> None:
        """After the workers: put back what is not finished. The partitions may be given up now."""
        self._end()
        for reader in self._readers:
            reader.put_back()
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._engine.end_session(self)

    # ---- waiting for records

    async def _news_of(self, reader: ClaimReader, timeout: float | None) -> None:
        """Until asking the reader again makes sense, or the time is over. Raises what keeps the consumer from
        reading anything, if that is told meanwhile."""
        if reader.has_news():
            return
        self._engine.raise_trouble()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[reader] = waiter
        timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.pop(reader, None)
            if timer is not None:
                timer.cancel()

    def _news_came(self) -> None:
        """The engine fetched something, or met an error: wake the workers whom it concerns."""
        trouble = self._engine.take_trouble() if self._waiters else None
        for reader, waiter in self._waiters.items():
            if reader.has_news():
                _wake(waiter)
            elif trouble is not None and not waiter.done():
                waiter.set_exception(copy(trouble))  # each worker raises one of its own

    # ---- watching

    async def _watch(self) -> None:
        due = self._group.rebalance_due_event
        loop = asyncio.get_running_loop()
        pause = min(
            MOST_SECONDS_BETWEEN_LOOKS,
            self._engine.config.seconds("max.poll.interval.ms") / LOOKS_PER_POLL_INTERVAL,
        )
        before: set[object] = set()
        while not self._is_over:
            in_work: set[object] = {reader.in_work for reader in self._readers if reader.is_busy}
            if not in_work or in_work - before:
                self._group.polled(loop.time())
            before = in_work
            try:
                async with asyncio.timeout(pause):
                    await due.wait()
                self._end()
            except TimeoutError:
                pass
        await asyncio.sleep(self._drain_seconds)
        if any(reader.is_busy for reader in self._readers):
            self._tell_undrained()
            self._stop_overdue()

    def _tell_undrained(self) -> None:
        if self._drain_seconds:
            names = listed([reader.partition for reader in self._readers if reader.is_busy])
            self._logger.warning(
                "claims were not drained within %g s, and are cancelled: %s", self._drain_seconds, names
            )


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
