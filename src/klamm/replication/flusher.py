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


class Flusher:
    def __init__(self, executor: Executor, on_failure: Callable[[Log, OSError], None]) -> None:
        self._executor = executor
        self._on_failure = on_failure
        self._waiting: dict[Log, asyncio.Future[None]] = {}
        self._running: set[Log] = set()
        self._flushing_rolled: set[Log] = set()

    def flush(self, log: Log) -> asyncio.Future[None]:
        """A future that is done when everything appended to `log` so far is on stable storage.

        Each caller gets a future of its own: cancelling it does not disturb the others.
        """
        loop = asyncio.get_running_loop()
        future = self._waiting.get(log)
        if future is None:
            future = self._waiting[log] = loop.create_future()
            # Callers that await get the failure; without one, on_failure has reported it.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            if log not in self._running:
                self._start(log, loop)
        return asyncio.shield(future)

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
        future = self._waiting.pop(log)
        self._running.add(log)

        def finished(done: asyncio.Future[None]) -> None:
            self._running.discard(log)
            error = done.exception()
            if error is None:
                future.set_result(None)
            else:
                if isinstance(error, OSError):
                    self._on_failure(log, error)
                future.set_exception(
                    KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"fsync of {log.directory} failed: {error}")
                )
            if log in self._waiting:
                self._start(log, loop)

        loop.run_in_executor(self._executor, log.flush).add_done_callback(finished)
