"""A group's life as Python control flow: a session is one round of it, a claim is one partition within it.

    async for session in consumer.sessions():              # one round per rebalance
        async with session, asyncio.TaskGroup() as tasks:
            for claim in session.claims:
                tasks.create_task(work(claim))             # async for record in claim: ...

When a rebalance is due every claim ends: with on_revoke="drain" a worker finishes the record it has and its
loop ends; with "cancel" a task that has a record in work is cancelled. One that takes longer than
`drain_timeout` to finish is cancelled as well. Tasks that just wait for a record are never cancelled, their
loops end. What is finished is committed (with automatic commits) before a partition is given up; the record
in work of a cancelled task is not finished, and is handed out again.

How that goes together with the user's own cancelling: workers are cancelled one by one, as tasks, which a
TaskGroup takes for the end of a task and no failure. If the task that runs the `async with` is itself a
worker it is cancelled, too, and the `async with` swallows that, as asyncio.timeout does; a cancellation that
the user asked for is counted by the task, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from klamm.client.consumer.group.base_session import (
    DRAIN,
    BaseClaim,
    BaseSession,
    drain_seconds,
    next_round,
)
from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.consumer.polling import Waiting
from klamm.client.results import Record

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.consumer.engine import ConsumerEngine

CANCEL_SECONDS = 5.0
"""How long a cancelled worker may take to clean up before the session goes on without it."""


class Claim(BaseClaim):
    """One partition within a session: `async for record in claim`, in one task. Ends when it is revoked."""

    _session: Session
    _task: asyncio.Task[object] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record; the one before is finished."""
        record = self._reader.next_at_hand()
        if record is None:
            record = await self._next_record()
            if record is None:
                raise StopAsyncIteration
        return record

    async def poll(self, max_records: int | None = None, timeout: float | None = None) -> list[Record]:
        """Several records at once; those before are finished. Nothing when the claim has ended, or when
        `timeout` seconds are over: `while records := await claim.poll(): ...`"""
        return await self._poll(max_records, timeout)

    async def poll_arrow(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> pyarrow.RecordBatch:
        """As `poll`, but the records come as columns: `while (batch := await claim.poll_arrow()).num_rows:`

        Without `max_records` it is all that is buffered, up to some megabytes. Needs klamm[arrow].
        """
        return await self._poll_arrow(max_records, timeout)

    async def commit(self) -> None:
        """Commit what is finished of this partition, and wait for that."""
        await self._session._commit([self])

    def _worker_came_back(self) -> None:
        self._session._returned.set()
        self._task = asyncio.current_task()

    def _worker(self) -> asyncio.Task[object] | None:
        """The task that last asked for a record, if it still runs."""
        return self._task if self._task is not None and not self._task.done() else None


class Session(BaseSession):
    """One round of a group's life: the partitions that this member has until the next rebalance.

    `claims` has one for each. Work on them inside of `async with session`, which ends when they have ended.
    """

    def __init__(self, engine: ConsumerEngine, waiting: Waiting, drain_seconds: float) -> None:
        super().__init__(engine, waiting, drain_seconds)
        self.claims: tuple[Claim, ...] = tuple(Claim(self, reader) for reader in self._readers)
        self._returned = asyncio.Event()
        """Set when a worker came back for more: it may have been the last with a record in work."""
        self._task: asyncio.Task[object] | None = None
        self._cancelling_before = 0
        self._has_cancelled = False
        self._has_cancelled_own_task = False

    async def commit(self) -> None:
        """Commit what is finished of all claims, and wait for that."""
        await self._commit(self.claims)

    async def __aenter__(self) -> Self:
        self._enter()
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling_before = self._task.cancelling()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Wait for workers that no TaskGroup waited for, then end. Swallows our own cancellation only."""
        is_ours = self._take_back_cancellation() and kind is asyncio.CancelledError
        self._end()
        try:
            await self._stop_workers(at_once=not (kind is None or is_ours))
        finally:
            await self._exit()
        return is_ours

    # ---- inside

    def _stop_overdue(self) -> None:
        self._cancel_workers()

    async def _drain(self) -> None:
        await self._stop_workers()

    async def _wait_for_news(self, reader: ClaimReader, timeout: float | None) -> None:
        await self._news_of(reader, timeout)

    def _workers(self) -> set[asyncio.Task[object]]:
        """Tasks other than our own that have a record in work."""
        own = asyncio.current_task()
        found = {claim._worker() for claim in self.claims if claim._reader.is_busy}
        return {task for task in found if task is not None and task is not own}

    async def _stop_workers(self, at_once: bool = False) -> None:
        """Wait for the workers, for `drain_seconds` at most; then cancel those that are still at work."""
        if not at_once:
            await self._wait_for_workers(self._drain_seconds)
            if self._workers():
                self._tell_undrained()
        self._cancel_workers()
        await self._wait_for_workers(CANCEL_SECONDS)

    async def _wait_for_workers(self, seconds: float) -> None:
        """Wait until nobody has a record in work, except us."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (workers := self._workers()) and loop.time() < deadline:
            self._returned.clear()
            returned = loop.create_task(self._returned.wait())
            await asyncio.wait(
                {*workers, returned}, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            returned.cancel()

    def _cancel_workers(self) -> None:
        """Cancel tasks that have a record in work; `_take_back_cancellation` knows that it was us."""
        for task in self._workers():
            self._has_cancelled = True
            self._has_cancelled_own_task |= task is self._task
            task.cancel("the claim that this task works on was revoked")

    def _take_back_cancellation(self) -> bool:
        """True if only this session cancelled the task, directly or through a gather of the user's."""
        assert self._task is not None
        if self._has_cancelled_own_task:
            self._task.uncancel()
            self._has_cancelled_own_task = False
        return self._has_cancelled and self._task.cancelling() <= self._cancelling_before


class Sessions:
    """The sessions of a consumer, one after the other, until it is closed."""

    def __init__(
        self,
        engine: ConsumerEngine,
        waiting: Waiting,
        on_revoke: str,
        drain_timeout: float | None,
        start: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._waiting = waiting
        self._start = start
        seconds = drain_seconds(engine, on_revoke, drain_timeout)
        self._drain_seconds = seconds if on_revoke == DRAIN else 0.0
        self._session: Session | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Session:
        """Take part in the rebalance that is due, or wait for one if the session before was left early."""
        engine = self._engine
        if engine.is_leaving:
            raise StopAsyncIteration
        await self._start()
        if not await next_round(engine, self._session is not None):
            raise StopAsyncIteration
        self._session = Session(engine, self._waiting, self._drain_seconds)
        return self._session
