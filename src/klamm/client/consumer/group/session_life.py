"""The life of one session, on the consumer's loop, under both faces: from a rebalance to the next.

While it lives, a task watches for the rebalance that ends it, tells the group that the user is alive, and
gives those who work on records their time to finish. It is over when a rebalance is due, when the user leaves
it, or when the consumer is closed. From then on no claim hands out another record.

The user counts as alive unless every claim with a record in work is with the same record still: that is what
max.poll.interval.ms is for here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING

from klamm.client.arguments import as_timeout
from klamm.client.consumer.group.claim_reader import ClaimReader
from klamm.client.errors import ClientMisused
from klamm.client.logs import client_logger

if TYPE_CHECKING:
    from klamm.client.consumer.engine import ConsumerEngine

DRAIN = "drain"
CANCEL = "cancel"

DRAIN_SHARE = 0.8
"""How much of the time that a rebalance waits for a member may go into finishing records, by default. The
rest is for commits and the join."""

LOOKS_PER_POLL_INTERVAL = 10
MOST_SECONDS_BETWEEN_LOOKS = 1.0
"""How often it is looked whether the workers get on."""


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


class SessionLife:
    """`on_overtime` is called when whoever still works must stop, `on_close` when the consumer is closed and
    has to wait for them."""

    def __init__(
        self,
        engine: ConsumerEngine,
        drain_seconds: float,
        *,
        on_overtime: Callable[[], None],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        group, _ = engine.need_group("sessions() without a group")
        self.drain_seconds = drain_seconds
        self.generation = group.generation
        self.readers: Sequence[ClaimReader] = tuple(
            ClaimReader(engine.positions, engine.records, partition, engine.max_poll_records)
            for partition in sorted(engine.positions.assignment())
        )
        self.is_entered = False
        self.is_over = False
        self._engine = engine
        self._group = group
        self._on_overtime = on_overtime
        self._on_close = on_close
        self._watching: asyncio.Task[None] | None = None
        self._waiting: dict[ClaimReader, asyncio.Future[None]] = {}
        self._logger = client_logger("sessions", engine.client_id)

    # ---- from enter to exit

    def enter(self) -> None:
        if self.is_entered or self.is_over:
            raise ClientMisused("a session is entered once", advice="Take the next one from sessions()")
        self._engine.begin_session(self)
        self.is_entered = True
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch(), name="klamm-session", context=Context())

    def end(self) -> None:
        """Hand out nothing more. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        for reader in self.readers:
            reader.end()
        for waiter in self._waiting.values():
            _wake(waiter)

    async def close(self) -> None:
        """The consumer is being closed: wait for the workers, and put back what they have not finished."""
        self.end()
        await self._on_close()
        await self.exit()

    async def exit(self) -> None:
        """After the workers: put back what is not finished. The partitions may be given up now."""
        self.end()
        for reader in self.readers:
            reader.settle()
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._engine.end_session(self)

    def check_entered(self) -> None:
        if not self.is_entered:
            raise ClientMisused(
                "a claim is read before its session is entered",
                advice="Write `with session:`, or `async with session:`, around it",
            )

    # ---- waiting for records

    async def wait_for_news(self, reader: ClaimReader, timeout: float | None = None) -> None:
        """Until asking the reader again makes sense, or the time is over."""
        if reader.has_news():
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[reader] = waiter
        timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiting.pop(reader, None)
            if timer is not None:
                timer.cancel()

    def news_came(self) -> None:
        """The engine fetched something, or met an error: wake those whom it concerns."""
        for reader, waiter in self._waiting.items():
            if reader.has_news():
                _wake(waiter)

    # ---- watching

    async def _watch(self) -> None:
        due = self._group.rebalance_due_event
        loop = asyncio.get_running_loop()
        pause = min(
            MOST_SECONDS_BETWEEN_LOOKS,
            self._engine.config.seconds("max.poll.interval.ms") / LOOKS_PER_POLL_INTERVAL,
        )
        before: set[int] = set()
        while not self.is_over:
            in_work = {id(reader.in_work) for reader in self.readers if reader.is_busy}
            if not in_work or in_work - before:
                self._group.polled(loop.time())
            before = in_work
            try:
                async with asyncio.timeout(pause):
                    await due.wait()
                self.end()
            except TimeoutError:
                pass
        await asyncio.sleep(self.drain_seconds)
        if any(reader.is_busy for reader in self.readers):
            if self.drain_seconds:
                self._logger.warning(
                    "claims were not drained within %g s, and are cancelled", self.drain_seconds
                )
            self._on_overtime()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
