"""Loads shards from their partitions, a few at a time, until each is loaded or resigned.

A load that fails is tried again, after longer and longer pauses: the groups of the partition must not be
answered as unknown, and the reason may pass. Each reason is logged once for a shard.

A new leader may have records above its high watermark that its predecessor acknowledged. A load waits until
they are committed, so that no group is served from an older state, nor from records that may still be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from klamm.groups.shard import Shard
from klamm.groups.timers import Timers, wait_until
from klamm.model.errors import KafkaError

_LOGGER = logging.getLogger(__name__)
LOADS_AT_A_TIME = 4
FIRST_BACKOFF_MS = 100
LONGEST_BACKOFF_MS = 10_000
"""So that the groups are back soon after the reason for a failure has passed."""
LOAD_WAIT_MS = 1_000
"""Longer loads are left to the client's retries, so that its connection is free meanwhile."""


class Loader:
    def __init__(self, timers: Timers, on_loaded: Callable[[Shard], None]) -> None:
        self._timers = timers
        self._on_loaded = on_loaded
        self._loads: dict[Shard, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(LOADS_AT_A_TIME)
        self._waiting: set[asyncio.Future[None]] = set()
        """Requests that wait for groups. All of them look again whenever a shard is loaded."""

    def start(self, shard: Shard) -> None:
        load = asyncio.ensure_future(self._load(shard))
        self._loads[shard] = load
        load.add_done_callback(lambda _: self._loads.pop(shard, None))

    def cancel(self, shard: Shard) -> None:
        load = self._loads.pop(shard, None)
        if load is not None:
            load.cancel()

    async def _load(self, shard: Shard) -> None:
        backoff_ms = FIRST_BACKOFF_MS
        logged: set[str] = set()
        while shard.led.is_led:
            try:
                # Without a slot: a partition that lacks replicas must not keep the others from being loaded.
                await shard.led.until_committed()
                async with self._slots:
                    await shard.load()
            except Exception as error:
                if shard.led.is_led:
                    _log_once(shard, error, logged)
            if shard.is_loaded:
                self._on_loaded(shard)
                self._wake()
                return
            await wait_until(self._timers, self._timers.now_ms() + backoff_ms)
            backoff_ms = min(2 * backoff_ms, LONGEST_BACKOFF_MS)

    async def wait_until_loaded(self, partitions: Collection[int], is_loaded: Callable[[int], bool]) -> None:
        """Wait until all are loaded, but not for longer than `LOAD_WAIT_MS`."""
        deadline_ms = self._timers.now_ms() + LOAD_WAIT_MS
        while self._timers.now_ms() < deadline_ms and not all(map(is_loaded, partitions)):
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(woken)
            try:
                await wait_until(self._timers, deadline_ms, woken)
            finally:
                self._waiting.discard(woken)

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


def _log_once(shard: Shard, error: Exception, logged: set[str]) -> None:
    reason = error.code.name if isinstance(error, KafkaError) else type(error).__name__
    if reason in logged:
        return
    logged.add(reason)
    _LOGGER.error(
        "__consumer_offsets-%d cannot be loaded, so its groups are not served; this is tried again until it "
        "succeeds: %s: %s",
        shard.partition,
        reason,
        error,
        exc_info=None if isinstance(error, KafkaError) else error,
    )
