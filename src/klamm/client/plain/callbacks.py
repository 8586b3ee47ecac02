"""Runs the user's callbacks in the thread that called.

A rebalance goes forward on the client's loop, but what it has to tell the user it tells where the user polls,
who may call the client from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from klamm.client.consumer.subscription import Listener
from klamm.client.plain.runner import LoopThread
from klamm.client.results import TopicPartition

T = TypeVar("T")


class _Job(NamedTuple):
    """A callback that waits for the user's thread."""

    listener: Listener
    partitions: set[TopicPartition]
    outcome: asyncio.Future[None]


class CallbackRunner:
    """For one client and its loop. Callbacks come one at a time, since rebalances do."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()

    async def call(self, listener: Listener, partitions: set[TopicPartition]) -> None:
        """On the loop: have the thread that waits in `run` call the listener, and wait for that."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._jobs.put(_Job(listener, partitions, outcome))
        await outcome

    def run(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        """In the user's thread: run `work` on the loop, and meanwhile the callbacks here."""
        call = _Call(work)
        thread.run(call.begin())
        try:
            while (job := thread.run(call.next_job(self._jobs))) is not None:
                error: BaseException | None = None
                try:
                    job.listener(job.partitions)
                except Exception as raised:
                    error = raised
                finally:
                    # Also when it is interrupted (Ctrl-C): the rebalance waits for this, and so would the
                    # next poll.
                    thread.run(_answer(job, error))
        except BaseException:
            thread.run(call.cancel())
            raise
        return thread.run(call.result())


class _Call(Generic[T]):
    """What runs on the loop while callbacks are waited for."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def begin(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def next_job(self, jobs: asyncio.Queue[_Job]) -> _Job | None:
        """The next callback; None when the work is done."""
        assert self._task is not None
        waiting = asyncio.create_task(jobs.get())
        try:
            await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            return None
        finally:
            waiting.cancel()

    async def result(self) -> T:
        assert self._task is not None
        return await self._task

    async def cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _answer(job: _Job, error: BaseException | None) -> None:
    if job.outcome.done():
        return
    if error is None:
        job.outcome.set_result(None)
    else:
        job.outcome.set_exception(error)
