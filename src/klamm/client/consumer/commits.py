"""The commits of one consumer: automatic ones of finished records, and those that the user asks for.

They are sent one after the other, so that an older commit never overwrites a newer one. While one is under
way, later commits that nobody waits for are merged: only the newest offset of a partition matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextvars import Context
from time import monotonic
from typing import Any

from klamm.client.arguments import seconds_left
from klamm.client.consumer.group.coordinator import GroupCoordinator
from klamm.client.consumer.positions import Positions
from klamm.client.errors import ClientError
from klamm.client.logs import client_logger
from klamm.client.results import CommittedOffset, TopicPartition

LEAST_INTERVAL_SECONDS = 0.01
"""An interval of 0 asks for commits as often as possible, and not for a busy loop."""

Offsets = Mapping[TopicPartition, CommittedOffset]

MOST_NAMED = 8
"""How many partitions a log line or an error names; a longer list would not help."""


class Commits:
    """Runs on the loop of its group's coordinator, from `start` to `close`."""

    def __init__(
        self,
        group: GroupCoordinator,
        positions: Positions,
        *,
        client_id: str,
        interval_seconds: float | None,
        timeout_seconds: float,
    ) -> None:
        """Without `interval_seconds` there are no automatic commits."""
        self._group = group
        self._positions = positions
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._logger = client_logger("commits", client_id)
        self._one_at_a_time = asyncio.Lock()
        self._later: dict[TopicPartition, CommittedOffset] = {}
        self._sent: dict[TopicPartition, CommittedOffset] = {}
        """The offsets that were taken out of `_later` last: they are being committed, or have been."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.is_polled = False
        """True after the first poll. Before it nothing is finished, and the position at which reading would
        start must not overwrite an offset that the user has committed."""

    @property
    def is_automatic(self) -> bool:
        return self._interval_seconds is not None

    def start(self) -> None:
        if self._interval_seconds is not None:
            self._spawn("automatic", self._commit_for_ever(self._interval_seconds))

    async def close(self, deadline: float) -> None:
        """Wait for the commits of `commit_later` until the monotonic clock says `deadline`, and end all."""
        if task := self._tasks.pop("automatic", None):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task := self._tasks.get("later"):
            await self.wait_for_later(seconds_left(deadline))
            if not task.done():
                self._logger.warning(
                    "the consumer is closed before its commits were answered; perhaps not committed: %s",
                    described({**self._sent, **self._later}),
                )
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def commit(self, offsets: Offsets, timeout: float | None = None) -> None:
        """Commit `offsets`, after the commits that are under way."""
        for partition in offsets:
            self._later.pop(partition, None)  # older, and it would be sent after this one
        async with self._one_at_a_time:
            await self._commit(offsets, timeout)

    def commit_later(self, offsets: Offsets) -> None:
        """Commit `offsets` in the background; a failure is logged."""
        self._later.update(offsets)
        if "later" not in self._tasks:
            self._spawn("later", self._commit_gathered())

    async def commit_finished(self, timeout: float | None = None) -> None:
        """Commit finished records, if commits are automatic; a failure is logged. `timeout` also bounds the
        wait for commits that are under way."""
        if not self.is_automatic or not self.is_polled:
            return
        began = monotonic()
        try:
            async with asyncio.timeout(timeout), self._one_at_a_time:
                # Not looked up before: a commit of the user that was under way may have a later offset.
                offsets = self._positions.committable()
                if offsets:
                    await self._commit(offsets, timeout)
        except (ClientError, TimeoutError) as error:
            if offsets := self._positions.committable():
                self._logger.warning(
                    "not committed: %s; %s",
                    described(offsets),
                    error if isinstance(error, ClientError) else f"no answer for {monotonic() - began:.1f} s",
                )

    async def wait_for_later(self, timeout: float | None = None) -> None:
        """Wait for the commits of `commit_later`, before partitions are given up: afterwards they would be
        refused, or go out under the next generation and undo what the next owner has committed."""
        if task := self._tasks.get("later"):
            await asyncio.wait([task], timeout=timeout)

    # ---- inside

    async def _commit(self, offsets: Offsets, timeout: float | None) -> None:
        await self._group.commit(offsets, self._timeout_seconds if timeout is None else timeout)
        self._positions.was_committed(offsets)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        # A context of its own: the caller's context may hold a deadline, which must not end this task.
        loop = asyncio.get_running_loop()
        self._tasks[name] = loop.create_task(work, name=f"klamm-commits-{name}", context=Context())

    async def _commit_for_ever(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(max(interval_seconds, LEAST_INTERVAL_SECONDS))
            await self.commit_finished()

    async def _commit_gathered(self) -> None:
        try:
            while self._later:
                self._sent, self._later = self._later, {}
                try:
                    async with self._one_at_a_time:
                        await self._commit(self._sent, None)
                except ClientError as error:
                    self._logger.warning("a commit that nobody waited for failed: %s", error)
        finally:
            self._tasks.pop("later", None)


def described(offsets: Offsets) -> str:
    """The first few partitions with their offsets, for log lines and errors."""
    shown = ", ".join(f"{each} at {offsets[each].offset}" for each in sorted(offsets)[:MOST_NAMED])
    more = len(offsets) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
