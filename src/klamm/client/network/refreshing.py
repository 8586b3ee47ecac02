"""Keeps the metadata fresh: one task that asks when somebody needs to know, and once in a while anyway.

A question creates the topics that it names only where it was told so (`request(create=...)`), because records
wait for them; or always, for a consumer that may create what it subscribes to. A mere refresh creates
nothing: it would bring back topics that were deleted.

What always holds: at most one question is under way; all who asked before it began are answered by it; who
asks while it is under way is answered by the next. Questions that bring no news come ever less often. An
error that no retry can heal (a wrong password, a server that is no broker) ends the waiting of all who wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable

from klamm.client.errors import BrokerError, ClientClosed, ClientError
from klamm.client.logs import ClientLogger
from klamm.client.network.backoff import Backoff
from klamm.client.network.metadata import MetadataCache, MetadataChange
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Ask = Callable[[MetadataRequest], Awaitable[MetadataResponse]]

MISSING_TOPIC_S = 1.0
"""How soon a wanted topic that is not there is asked for again: somebody waits for it to be created. Kafka's
own clients ask as often."""


class MetadataRefresher:
    """Runs on the loop of its network, from `start` to `close`."""

    def __init__(
        self,
        metadata: MetadataCache,
        ask: Ask,
        *,
        backoff: Backoff,
        max_age_seconds: float,
        always_creates: bool,
        logger: ClientLogger,
    ) -> None:
        self._metadata = metadata
        self._ask = ask
        self._backoff = backoff
        self._max_age_seconds = max_age_seconds
        self._always_creates = always_creates
        self._to_create: set[str] = set()
        """Topics that the next question creates if they are not there."""
        self._logger = logger
        self._wanted: set[str] = set()
        self._wants_all = False
        self._callbacks: list[Callable[[MetadataChange], None]] = []
        self.on_failure: Callable[[ClientError, float], None] | None = None
        """Called after a question that failed, with why and for how many seconds none has succeeded."""
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._is_urgent = False
        self._fruitless = 0
        """Questions in a row that brought no news."""
        self._failures = 0
        """Questions in a row that were not answered."""
        self._failing_since = 0.0
        """When the first of them was asked."""
        self._missing_since: dict[str, float] = {}
        """Wanted topics that are not there, as of the latest answer."""
        self._told_missing: set[str] = set()
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.last_error: ClientError | None = None
        """Why the latest question failed; None after one that succeeded."""

    # ---- for the network

    def start(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="klamm-metadata")

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        _end(self._waiting, ClientClosed("the client was closed"))

    def want(self, names: Iterable[str]) -> None:
        news = set(names) - self._wanted
        if news:
            self._wanted |= news
            if not self._wants_all:
                self._is_urgent = True
                self._wake.set()
            self.request()

    def want_all(self, wants_all: bool) -> None:
        if wants_all and not self._wants_all:
            self._is_urgent = True
            self._wake.set()
        self._wants_all = wants_all
        if wants_all:
            self.request()

    def drop(self, names: Iterable[str]) -> None:
        dropped = set(names)
        self._wanted -= dropped
        if not self._wants_all:
            self._metadata.forget_topics(dropped)

    def on_change(self, callback: Callable[[MetadataChange], None]) -> None:
        self._callbacks.append(callback)

    def request(self, create: Iterable[str] = ()) -> asyncio.Future[None]:
        """A future of the caller's own that is done after the next question that begins and succeeds.

        That question creates the topics of `create` if they are not there and the broker does so at all.
        """
        self._to_create.update(create)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._is_closed:
            future.set_exception(ClientClosed("the client was closed"))
            return future
        self._waiting.append(future)
        self._wake.set()
        self.start()
        return future

    # ---- the task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._until_due(loop)
            waiting, self._waiting = self._waiting, []
            self._wake.clear()
            self._is_urgent = False
            self._asked_at = loop.time()
            try:
                await self._refresh(loop.time)
            except ClientError as error:
                self.last_error = error
                self._fruitless += 1
                if not self._failures:
                    self._failing_since = self._asked_at
                self._failures += 1
                # The second, fourth, eighth, … failure in a row: trouble that lasts is told, not repeated.
                is_worth_telling = self._failures > 1 and self._failures & (self._failures - 1) == 0
                level = logging.WARNING if is_worth_telling else logging.DEBUG
                self._logger.log(level, "metadata could not be fetched: %s", error)
                if error.retriable:
                    self._waiting = [each for each in waiting if not each.done()] + self._waiting
                    self._wake.set()
                else:
                    _end(waiting, error)
                if self.on_failure is not None:
                    self.on_failure(error, loop.time() - self._failing_since)
            except asyncio.CancelledError:
                self._waiting = waiting + self._waiting  # `close` tells them
                raise
            except Exception as error:  # a callback of ours; never leave the waiters alone
                self._fruitless += 1
                self._logger.exception("metadata could not be taken over")
                _end(waiting, error)
            else:
                self.last_error = None
                self._failures = 0
                _end(waiting, None)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until somebody asks or the metadata is old; then pause as long as questions bring no news."""
        updated_at = self._metadata.updated_at
        max_age = (
            min(self._max_age_seconds, MISSING_TOPIC_S) if self._missing_since else self._max_age_seconds
        )
        age_left = None if updated_at is None else updated_at + max_age - loop.time()
        await self._woken(age_left)
        while self._fruitless and not self._is_urgent:
            pause = self._asked_at + self._backoff.pause(self._fruitless, random.random()) - loop.time()
            if pause <= 0:
                return
            self._wake.clear()
            await self._woken(pause)

    async def _woken(self, seconds: float | None) -> None:
        """Wait until somebody asks, or for that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _refresh(self, clock: Callable[[], float]) -> None:
        wants_all = self._wants_all
        created = self._to_create & self._wanted
        self._to_create = set()
        has_news = False
        try:
            if created:
                has_news = await self._ask_about(sorted(created), clock, creates=True)
            others = None if wants_all else sorted(self._wanted - created)
            if others or not created:
                has_news = await self._ask_about(others, clock, creates=self._always_creates) or has_news
        except ClientError:
            self._to_create |= created
            raise
        self._note_missing(clock())
        self._fruitless = 0 if has_news else self._fruitless + 1

    async def _ask_about(self, names: list[str] | None, clock: Callable[[], float], *, creates: bool) -> bool:
        """Ask about these topics, or about all, and take over the answer; whether it brought news."""
        response = await self._ask(
            MetadataRequest(
                topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=creates,
            )
        )
        if response.error_code != ErrorCode.NONE:
            error = BrokerError.of(response.error_code, "asking for metadata")
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._metadata.forget_brokers()
                error.retriable = True  # from the addresses that the user gave
            raise error
        cluster_id = self._metadata.cluster_id
        change = self._metadata.apply(response, clock(), all_topics=names is None)
        if cluster_id is not None and self._metadata.cluster_id != cluster_id:
            self._logger.warning("the cluster was %s and is %s now", cluster_id, self._metadata.cluster_id)
        if change:
            self._logger.debug("the cluster changed: %s", change)
        for callback in self._callbacks:
            callback(change)
        return bool(change)

    def _note_missing(self, now: float) -> None:
        """Which wanted topics are not there. One that stays away is told once: nothing else would show it."""
        topics = self._metadata.topics
        missing: dict[str, float] = {}
        if not self._wants_all:  # those who want all expect none
            for name in self._wanted:
                if name not in topics or not topics[name].exists:
                    missing[name] = self._missing_since.get(name, now)
        self._missing_since = missing
        self._told_missing &= missing.keys()
        for name, since in missing.items():
            if now - since >= MISSING_TOPIC_S and name not in self._told_missing:
                self._told_missing.add(name)
                code = topics[name].error if name in topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self._logger.warning("%s", BrokerError.of(code, f"looking for topic {name!r}"))


def _end(waiting: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _retrieve(done: asyncio.Future[None]) -> None:
    """Nobody needs to look at a refresh, so its failure is no surprise to the loop."""
    if not done.cancelled():
        done.exception()
