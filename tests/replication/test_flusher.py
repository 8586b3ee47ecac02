from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.replication.flusher import Flusher
from klamm.storage.log import Log


class SlowLog:
    """A log whose fsync lasts until it is let go."""

    directory = "/data/orders-0"

    def __init__(self) -> None:
        self.flushes = 0
        self.failure: OSError | None = None
        self.started = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def flush(self) -> None:
        self.flushes += 1
        self.started.release()
        assert self.gate.acquire(timeout=10)
        if self.failure is not None:
            raise self.failure

    async def until_started(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=10)


class Flushing:
    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.failed: list[tuple[object, OSError]] = []
        self.log = SlowLog()
        self._flusher = Flusher(executor, lambda log, error: self.failed.append((log, error)))

    def flush(self) -> asyncio.Future[None]:
        log: Log = self.log  # type: ignore[assignment]
        return self._flusher.flushed(log)


@pytest.fixture
def flushing() -> Iterator[Flushing]:
    with ThreadPoolExecutor(1) as executor:
        yield Flushing(executor)


async def test_who_asks_during_a_flush_waits_for_the_next_one(flushing: Flushing) -> None:
    first = flushing.flush()
    await flushing.log.until_started()
    second, third = flushing.flush(), flushing.flush()
    flushing.log.gate.release()
    await asyncio.wait_for(first, 10)
    await flushing.log.until_started()
    assert not second.done() and not third.done()
    flushing.log.gate.release()
    await asyncio.wait_for(asyncio.gather(second, third), 10)
    assert flushing.log.flushes == 2


async def test_a_client_that_leaves_takes_nothing_from_the_others(flushing: Flushing) -> None:
    first = flushing.flush()
    await flushing.log.until_started()
    leaving, staying = flushing.flush(), flushing.flush()

    async def wait_for_it() -> None:
        await leaving

    task = asyncio.create_task(wait_for_it())
    await asyncio.sleep(0)
    task.cancel()
    first.cancel()
    flushing.log.gate.release()
    flushing.log.gate.release()
    await asyncio.wait_for(staying, 10)
    flushing.log.gate.release()
    await asyncio.wait_for(flushing.flush(), 10)


async def test_a_failed_fsync_reaches_everybody_who_waits(flushing: Flushing) -> None:
    flushing.log.failure = OSError(5, "Input/output error")
    waiting = [flushing.flush()]
    await flushing.log.until_started()
    flushing.log.gate.release()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [getattr(result, "code", None) for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert isinstance(results[0], KafkaError) and "orders-0" in results[0].message
    assert flushing.failed == [(flushing.log, flushing.log.failure)]
