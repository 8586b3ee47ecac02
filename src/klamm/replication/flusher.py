"""Group commit: many appends wait for one fsync.

While a log is being flushed, everybody who asks for a flush of it waits for the next one, which then covers
them all. An fsync never runs on the event loop, and a failed one is never retried (the kernel may have
dropped the pages it could not write): the log directory goes offline instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from klamm.model.errors import ErrorCode, KafkaError
from klamm.storage.log import Log

Flushed = Callable[[KafkaError | None], None]
"""Is called once, when an fsync is over: with None, or with the error that its callers are told."""


class Flusher:
    def __init__(self, executor: Executor, on_failure: Callable[[Log, OSError], None]) -> None:
        self._executor = executor
        self._on_failure = on_failure
        self._waiting: dict[Log, list[Flushed]] = {}
        self._running: set[Log] = set()
        self._flushing_rolled: set[Log] = set()

    def flush(self, log: Log, done: Flushed) -> None:
        """Call `done` when everything appended to `log` so far is on stable storage."""
        waiting = self._waiting.get(log)
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[log] = [done]
        if log not in self._running:
            self._start(log, asyncio.get_running_loop())

    def flushed(self, log: Log) -> asyncio.Future[None]:
        """As `flush`, for coroutines: a future of the caller's own, which may be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: KafkaError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.flush(log, finish)
        return future

    def flush_rolled(self, log: Log) -> None:
        """Bring the full segments of `log` to the disk in the background, so that recovery stays short.

        One at a time for each log: segments that fill up meanwhile wait for the next, which takes them all.
        """
        if log in self._flushing_rolled:
            return
        self._flushing_rolled.add(log)
        loop = asyncio.get_running_loop()

        def finished(done: asyncio.Future[None]) -> None:
            self._flushing_rolled.discard(log)
            error = done.exception()
            if isinstance(error, OSError):
                self._on_failure(log, error)
            elif error is None and log.has_unflushed_segment:
                self.flush_rolled(log)

        rolled_offset = log.segments[-1].base_offset
        loop.run_in_executor(self._executor, log.flush, rolled_offset).add_done_callback(finished)

    def _start(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.pop(log)
        self._running.add(log)

        def finished(done: asyncio.Future[None]) -> None:
            self._running.discard(log)
            error = done.exception()
            told = None
            if error is not None:
                if isinstance(error, OSError):
                    self._on_failure(log, error)
                told = KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"fsync of {log.directory} failed: {error}"
                ).as_result()
            for flushed in waiting:
                flushed(told)
            if log in self._waiting:
                self._start(log, loop)

        loop.run_in_executor(self._executor, log.flush).add_done_callback(finished)
