"""Runs the user's rebalance callbacks in the thread that polls.

The client's loop does the rebalance, but the callbacks run in the user's thread, while it polls: there they
may call the client.
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
    """A callback that is to be run in the user's thread."""

    listener: Listener
    partitions: set[TopicPartition]
    outcome: asyncio.Future[None]


class CallbackRunner:
    """For one client and its loop. Rebalances happen one at a time, and so do their callbacks."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()

    async def call(self, listener: Listener, partitions: set[TopicPartition]) -> None:
        """On the loop: have the thread that is in `run` call the listener, and wait until it has."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._jobs.put(_Job(listener, partitions, outcome))
        await outcome

    def run(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        """In the user's thread: run `work` on the loop, and meanwhile run callbacks in this thread."""
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
                    # Also when the callback is interrupted (Ctrl-C): the rebalance waits for the result, and
                    # so would the next poll.
                    thread.run(_answer(job, error))
        except BaseException:
            thread.run(call.cancel())
            raise
        return thread.run(call.result())


class _Call(Generic[T]):
    """The coroutine that runs on the loop while the user's thread runs callbacks."""

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
