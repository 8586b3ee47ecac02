"""Refreshes the metadata, in one task: when somebody asks for it, and when the metadata are too old.

A refresh creates topics that do not exist only if somebody asked for that (`request(create=...)`), because
records wait for them; or always, for a consumer that may create the topics it subscribes to. Other refreshes
create none: they would bring back topics that were deleted. For the same reason a topic that only a call asks
about (where does it end?) is left out of the refreshes after the call.

What always holds: at most one request is under way. It answers all callers that asked before it began;
callers that ask while it is under way are answered by the next. Requests that bring nothing new become rarer.
An error that is not retriable (a wrong password, a server that is not a Kafka broker) is raised to all
callers that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable

from klamm.client.errors import BrokerError, ClientClosed, ClientError
from klamm.client.logs import ClientLogger
from klamm.client.network.backoff import Backoff
from klamm.client.network.metadata import MetadataCache, MetadataChange
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Ask = Callable[[MetadataRequest], Awaitable[MetadataResponse]]

MISSING_TOPIC_S = 1.0
"""How soon a wanted topic that does not exist is asked for again: somebody waits until it is created. Kafka's
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
        """Topics that the next request creates if they do not exist."""
        self._logger = logger
        self._wanted: set[str] = set()
        self._asked: Counter[str] = Counter()
        """The topics that calls ask about while they run, each with the number of these calls."""
        self._wants_all = False
        self._callbacks: list[Callable[[MetadataChange], None]] = []
        self.on_failure: Callable[[ClientError, float], None] | None = None
        """Called after a request that failed, with the error and the seconds since requests began to fail."""
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._is_urgent = False
        self._fruitless = 0
        """Requests in a row that brought nothing new."""
        self._failures = 0
        """Requests in a row that failed."""
        self._failing_since = 0.0
        """When the first of them was sent."""
        self._missing_since: dict[str, float] = {}
        """Wanted topics that do not exist according to the latest answer, and since when."""
        self._told_missing: set[str] = set()
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.last_error: ClientError | None = None
        """Why the latest request failed; None after one that succeeded."""

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
        self._wanted |= news
        self._ask_soon(news)

    def begin_call(self, names: Collection[str]) -> None:
        """Include these topics in every refresh until `end_call`."""
        news = set(names) - self._wanted - self._asked.keys()
        self._asked.update(names)
        self._ask_soon(news)

    def end_call(self, names: Collection[str]) -> None:
        self._asked -= Counter(names)
        self._forget(set(names) - self._wanted)

    def _ask_soon(self, news: set[str]) -> None:
        if news:
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
        self._forget(dropped)

    def _forget(self, names: set[str]) -> None:
        if not self._wants_all:
            self._metadata.forget_topics(names - self._asked.keys())

    def on_change(self, callback: Callable[[MetadataChange], None]) -> None:
        self._callbacks.append(callback)

    def request(self, create: Iterable[str] = ()) -> asyncio.Future[None]:
        """A future, for this caller alone, that ends when a request that begins after this call has
        succeeded.

        That request creates the topics of `create` that do not exist, if the broker creates topics
        automatically.
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
                # Warn at the second, fourth, eighth, … failure in a row: not at each, while trouble lasts.
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
                self._waiting = waiting + self._waiting  # `close` ends these futures
                raise
            except Exception as error:  # a bug in a callback of ours; the callers must not wait forever
                self._fruitless += 1
                self._logger.exception("handling new metadata failed")
                _end(waiting, error)
            else:
                self.last_error = None
                self._failures = 0
                _end(waiting, None)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until somebody asks or the metadata are too old; then pause if requests brought nothing
        new."""
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
        """Wait until somebody asks, or for `seconds`."""
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
            others = None if wants_all else sorted((self._wanted | self._asked.keys()) - created)
            if others or not created:
                has_news = await self._ask_about(others, clock, creates=self._always_creates) or has_news
        except ClientError:
            self._to_create |= created
            raise
        self._note_missing(clock())
        self._fruitless = 0 if has_news else self._fruitless + 1

    async def _ask_about(self, names: list[str] | None, clock: Callable[[], float], *, creates: bool) -> bool:
        """Ask about these topics, or about all, and take over the answer; returns whether anything
        changed."""
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
        """Note which wanted topics do not exist. Logs a warning once for each that stays missing: the user
        would see nothing else of it."""
        topics = self._metadata.topics
        missing: dict[str, float] = {}
        if not self._wants_all:  # a client that wants all topics does not miss any
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
    """Mark the error as seen: callers need not look at the future, and asyncio must not log its error."""
    if not done.cancelled():
        done.exception()
