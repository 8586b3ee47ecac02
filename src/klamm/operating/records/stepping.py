"""Runs what blocks in threads, one step at a time, so that the event loop is never held up.

A walk, a search, a tail or an export is a generator whose every step takes at most a fraction of a second:
it reads some records, decodes and filters them, and yields. Nothing is read unless the next step is asked
for, so a slow reader bounds the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

StepT = TypeVar("StepT")

MOST_THREADS = 32
"""How many steps run at the same time. Most of them wait for a broker."""

_threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="klamm-records")


class Steps(Generic[StepT]):
    """An asynchronous iterator over a generator that runs in threads.

        async with Steps(search.run()) as steps:
            async for step in steps: ...

    Leaving the block closes the generator, after the step that is under way.
    """

    def __init__(self, generator: Generator[StepT, None, None]) -> None:
        self._generator = generator
        self._running: Future[StepT | _End] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Steps[StepT]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Steps[StepT]:
        return self

    async def __anext__(self) -> StepT:
        if self._is_closed:
            raise StopAsyncIteration
        self._running = _threads.submit(next, self._generator, _END)
        found = await asyncio.wrap_future(self._running)
        if isinstance(found, _End):
            self._is_closed = True
            raise StopAsyncIteration
        return found

    async def close(self) -> None:
        """Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        closing: Future[None] = Future()
        running = self._running
        if running is None or running.done():
            closing = _threads.submit(self._generator.close)
        else:
            # In the thread of the step. At the end of the process no thread takes on new work any more.
            running.add_done_callback(lambda _: _close(self._generator, closing))
        await asyncio.shield(asyncio.wrap_future(closing))


class _End:
    """What a generator that has ended yields."""


_END = _End()


def _close(generator: Generator[StepT, None, None], closing: Future[None]) -> None:
    try:
        generator.close()
    finally:
        closing.set_result(None)


async def in_thread(work: Callable[[], StepT]) -> StepT:
    """What a function returns that blocks, run in one of the threads of steps."""
    return await asyncio.wrap_future(_threads.submit(work))
