"""The engine of a consumer, the same for the asyncio client and the plain client: makes, connects, starts and
closes its parts.

Everything here runs on the consumer's loop, except methods that say "From any thread": the plain client polls
in the user's thread. The member takes part in rebalances, and the user's callbacks are called, only inside a
poll (`join`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from time import monotonic
from typing import TypeAlias

from klamm.client.arguments import seconds_left
from klamm.client.consumer.commits import Commits
from klamm.client.consumer.fetch_planner import FetchPlanner
from klamm.client.consumer.fetch_requests import FetchSettings
from klamm.client.consumer.fetcher import Fetcher
from klamm.client.consumer.group.base_session import BaseSession
from klamm.client.consumer.group.coordinator import GroupCoordinator
from klamm.client.consumer.group.offsets import listed
from klamm.client.consumer.hand_out import HandOut
from klamm.client.consumer.offsets import OffsetLookup
from klamm.client.consumer.outages import Absences, Outage
from klamm.client.consumer.partition_state import UNKNOWN, PartitionState
from klamm.client.consumer.position_finder import PositionFinder
from klamm.client.consumer.positions import Positions
from klamm.client.consumer.start import parse_start
from klamm.client.consumer.subscription import Listener, Listeners, Subscription, Topics
from klamm.client.errors import BrokerError, ClientClosed, ClientError, ClientMisused
from klamm.client.logs import client_logger
from klamm.client.network.backoff import Backoff
from klamm.client.network.metadata import MetadataChange
from klamm.client.network.network import Network, Versioned
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

CLOSE_SECONDS = 5.0
"""How long `close` may take as a whole, by default. The next owner reads again what is not committed."""

CallListener: TypeAlias = Callable[[Listener, set[TopicPartition]], Awaitable[None]]
"""Calls a listener in the thread that polls."""


class ConsumerEngine:
    """One consumer, without its public methods. It is the GroupOwner of its group's coordinator."""

    def __init__(self, config: ClientConfig, ssl_context: ssl.SSLContext | None) -> None:
        policy = parse_start(config.str_("auto.offset.reset"))
        self.config = config
        self.network = Network(config, ssl_context=ssl_context)
        self.counters = self.network.counters
        self.client_id = self.network.client_id
        self.timeout_seconds = config.seconds("default.api.timeout.ms")
        self.max_poll_records = config.int_("max.poll.records")
        self.positions = Positions(threading.Lock())
        self.records = HandOut(self.positions)
        self._absences = Absences(self.positions)
        self._outage = Outage(self.timeout_seconds)
        self.subscription = Subscription(excludes_internal=config.bool_("exclude.internal.topics"))
        self.call_listener: CallListener = _call_here
        self.on_news: Callable[[], bool] | None = None
        """Called on the loop when a poll may have something to return. Returns True if a thread waited for
        it."""
        self._logger = client_logger("consumer", self.client_id)
        settings = FetchSettings.of(config)
        self.lookup = OffsetLookup(self.network, is_read_committed=settings.is_read_committed)
        self.group: GroupCoordinator | None = None
        self.commits: Commits | None = None
        if config.optional_str("group.id"):
            self.group = GroupCoordinator(self.network, config, self)
            is_automatic = config.bool_("enable.auto.commit")
            self.commits = Commits(
                self.group,
                self.positions,
                client_id=self.client_id,
                interval_seconds=config.seconds("auto.commit.interval.ms") if is_automatic else None,
                timeout_seconds=self.timeout_seconds,
            )
        finder = PositionFinder(
            self.positions,
            self.lookup,
            policy,
            None if self.group is None else self.group.try_committed,
            backoff=Backoff(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")),
            patience_seconds=self.timeout_seconds,
            clock=monotonic,
            logger=self._logger,
        )
        planner = FetchPlanner(settings, self.positions, self.network.metadata)
        self._fetcher = Fetcher(self.network, planner, finder, self._tell_news)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._is_kick_pending = False
        self.is_leaving = False
        """True if the consumer is being closed."""
        self.session: BaseSession | None = None
        """The session that the user is in, if any."""
        self._is_subscription_new = False
        self._parked: tuple[int, list[PartitionState]] = (UNKNOWN, [])
        """The partitions that were given up in this rebalance, after the generation in which we had them."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._joined = asyncio.Event()
        """Set after each `join`, for the task that watches for the next rebalance."""
        self._watcher: asyncio.Task[None] | None = None

    # ---- life

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        await self.network.start()
        self.network.on_metadata(self._metadata_came)
        self.network.on_metadata_failure(self._metadata_failed)
        self.positions.on_change = self._kick
        self._ask_for_topics()
        self._fetcher.start()
        if self.group is not None and self.commits is not None:
            self.commits.start()
            self._watcher = self._loop.create_task(self._watch(self.group), name="klamm-rebalances")

    async def farewell(self, deadline: float) -> None:
        """Before `close`, until the monotonic clock says `deadline`: wait for the workers of a session,
        commit finished records, call the listener, leave the group."""
        self.is_leaving = True
        if self.session is not None:
            await self.session._close(seconds_left(deadline))
        self.positions.interrupt()
        await self._fetcher.close()
        await self._give_up(deadline)

    async def close(self, deadline: float) -> None:
        """End every task and connection; what is not done at the `deadline` is given up."""
        self.is_leaving = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._fetcher.close()
        if self.commits is not None:
            await self.commits.close(deadline)
        if self.group is not None:
            await self.group.close(deadline)
        await self.network.close(seconds_left(deadline))
        self._tell_news()

    # ---- which partitions

    def subscribe(self, topics: Topics, listeners: Listeners) -> None:
        if self.group is None and any(listeners):
            raise ClientMisused(
                "subscribe() got callbacks for rebalances, and a consumer without a group has no rebalances",
                advice="Give the consumer a `group`, or leave out the callbacks",
            )
        before = self.subscription.topics(self.network.metadata.topics)
        self.subscription.subscribe(topics, listeners)
        self._is_subscription_new = True
        if self.session is not None:
            self.session._end()
        if self._loop is not None:
            self.network.drop_topics(before - self.subscription.topics(self.network.metadata.topics))
            self._ask_for_topics()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.subscription.assign(partitions)
        before = {partition.topic for partition in self.positions.states}
        self.positions.assign(partitions)
        if self._loop is not None:
            self.network.drop_topics(before - {partition.topic for partition in partitions})
            self._ask_for_topics()

    async def unsubscribe(self) -> None:
        if self.session is not None:
            await self.session._close()
        await self._give_up(monotonic() + self.timeout_seconds)
        self.network.want_all_topics(False)
        assigned = {partition.topic for partition in self.positions.states}
        self.network.drop_topics(assigned | self.subscription.topics(self.network.metadata.topics))
        self.subscription.clear()
        self.positions.assign(())

    def subscribed_topics(self) -> Collection[str]:
        """The topics whose partitions the group shares among its members."""
        return self.subscription.topics(self.network.metadata.topics)

    def _ask_for_topics(self) -> None:
        self.network.want_all_topics(self.subscription.pattern is not None)
        names = {partition.topic for partition in self.positions.states} | set(self.subscription.names)
        self.network.want_topics(names)
        if self.group is None:
            self._follow_topics()

    def _metadata_came(self, change: MetadataChange) -> None:
        wanted = {partition.topic for partition in self.positions.states} | set(self.subscription.names)
        if self._outage.metadata_came(self.network.metadata.topics, wanted):
            self._tell_trouble()
        if not self.subscription.is_by_topic:
            if self._absences.look(self.network.metadata.topics, monotonic()):
                self._tell_news()
        elif self.group is None and change:
            self._follow_topics()

    def _metadata_failed(self, error: ClientError, seconds: float) -> None:
        if self._outage.metadata_failed(error, seconds):
            self._tell_trouble()

    def _tell_trouble(self) -> None:
        self._tell_news()
        if self.group is not None:
            self.group.look_again()

    @property
    def has_trouble(self) -> bool:
        """From any thread: True if `raise_trouble` would raise an error."""
        return self._outage.error is not None

    def raise_trouble(self) -> None:
        """From any thread: raise the error that keeps the whole consumer from reading, if there is one."""
        if (error := self.take_trouble()) is not None:
            raise error

    def take_trouble(self) -> ClientError | None:
        """From any thread: the error that keeps the whole consumer from reading. It is returned once."""
        error = self._outage.take()
        if error is not None:
            # So that the next poll learns whether brokers answer again.
            self._on_loop(self.network.request_refresh)
        return error

    def _follow_topics(self) -> None:
        """Without a group: read all partitions of the topics, as they are created and deleted."""
        if self.subscription.is_by_topic:
            partitions = self.subscription.partitions(self.network.metadata.topics)
            if set(partitions) != self.positions.assignment():
                self.positions.assign(partitions)

    async def _give_up(self, deadline: float) -> None:
        """Give up all assigned partitions, for good. At the `deadline` a step that still waits is skipped."""
        if self.group is None or self.commits is None:
            return
        await self.commits.wait_for_later(seconds_left(deadline))
        await self.commits.commit_finished(seconds_left(deadline))
        if self.subscription.is_by_topic:
            owned = self.positions.assignment()
            listener = self.subscription.listeners.on_revoked
            if owned and listener is not None:
                await self._tell_until(deadline, listener, owned)
            await self.group.leave(seconds_left(deadline))

    async def _tell_until(self, deadline: float, listener: Listener, partitions: set[TopicPartition]) -> None:
        """Call a listener. A coroutine is cancelled at the `deadline`; a function cannot be."""
        limit = asyncio.timeout(seconds_left(deadline))
        try:
            async with limit:
                await self.call_listener(listener, partitions)
        except TimeoutError:
            if not limit.expired():
                raise  # the listener itself raised TimeoutError
            self._logger.warning("on_revoked did not end in time, and was cancelled: %s", listed(partitions))

    # ---- the group's owner: inside `join` only

    async def partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        assert self.group is not None and self.commits is not None
        self._unpark(set())
        await self.commits.wait_for_later()
        await self.commits.commit_finished()
        try:
            if self.subscription.listeners.on_revoked is not None:
                await self.call_listener(self.subscription.listeners.on_revoked, partitions)
        finally:
            # With an eager strategy most come back at the end of the rebalance. Nobody else had them then, so
            # there is no need to fetch everything again.
            self._parked = self.group.generation, self.positions.park(partitions)

    async def partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self._unpark(set())
        self.positions.assign(self.positions.assignment() - partitions)
        listener = self.subscription.listeners.for_loss()
        if listener is not None and partitions:
            await self.call_listener(listener, partitions)

    async def partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self._unpark(partitions)
        self.positions.assign(self.positions.assignment() | partitions)
        self.network.want_topics({partition.topic for partition in partitions})
        if self.subscription.listeners.on_assigned is not None:
            await self.call_listener(self.subscription.listeners.on_assigned, partitions)

    def _unpark(self, partitions: set[TopicPartition]) -> None:
        assert self.group is not None
        (generation, parked), self._parked = self._parked, (UNKNOWN, [])
        is_next = self.group.generation == generation + 1
        self.positions.unpark(parked, partitions if is_next else set())

    # ---- polls

    def begin_poll(self) -> None:
        """From any thread: what was handed out before is finished. Raises the error of a partition."""
        if self.is_leaving:
            # Another task or thread is about to close it; a poll that went on would find nothing for ever.
            raise ClientClosed(f"consumer {self.client_id} was closed during a poll")
        self.counters.polls += 1
        if self.group is not None and self.commits is not None:
            self.group.polled(monotonic())
            self.commits.is_polled = True
        self.records.begin_poll()

    def finish_given(self) -> None:
        """From any thread: the user leaves without an error, so the records that it has are finished."""
        if self.session is None and not self.is_leaving:
            self.records.finish_all()

    @property
    def is_rebalance_due(self) -> bool:
        """From any thread: True if a poll has to call `join` first."""
        return (
            self.group is not None
            and not self.is_leaving
            and self.subscription.is_by_topic
            and (self._is_subscription_new or self.group.rebalance_due)
        )

    async def join(self, timeout: float | None, *, until_stable: bool = False) -> None:
        """Join the group, or continue with a rebalance. Returns when the group is stable, the time is over,
        or there may be something to read meanwhile."""
        assert self.group is not None and self.commits is not None
        self._is_subscription_new = False
        self.commits.is_polled = True
        try:
            await self.group.ensure_active(timeout, until_stable=until_stable)
        finally:
            self._joined.set()

    async def wait_for_news(self, timeout: float | None) -> None:
        """Wait until a poll may have something to return, or must `join`, or the time is over."""
        assert self._loop is not None
        if self.records.has_news() or self.is_rebalance_due or self.is_leaving or self.has_trouble:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = None if timeout is None else self._loop.call_later(timeout, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    def _tell_news(self) -> bool:
        """Wake the polls that wait for something to return. True if a thread waits."""
        for waiter in self._waiters:
            _wake(waiter)
        if self.session is not None:
            self.session._news_came()
        if self.on_news is not None and self.on_news():
            self.positions.owe_change()
            return True
        return False

    def _kick(self) -> None:
        """From any thread: wake the loop to fetch more, unless a wake-up is under way already."""
        if threading.get_ident() == self._loop_thread:
            self._fetcher.kick()
        elif not self._is_kick_pending:
            self._is_kick_pending = True
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # a closed loop: nothing will be fetched any more
                self._loop.call_soon_threadsafe(self._kicked)

    def _on_loop(self, function: Callable[[], object]) -> None:
        """From any thread: have the loop call a function, unless it is closed."""
        assert self._loop is not None
        if threading.get_ident() == self._loop_thread:
            function()
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def _kicked(self) -> None:
        self._is_kick_pending = False
        self._fetcher.kick()

    async def _watch(self, group: GroupCoordinator) -> None:
        """Interrupt polls and iterations when a rebalance is due."""
        while True:
            await group.rebalance_due_event.wait()
            self.positions.interrupt()
            self._tell_news()
            self._joined.clear()
            await self._joined.wait()

    # ---- sessions

    def begin_session(self, session: BaseSession) -> None:
        if self.session is not None:
            raise ClientMisused(
                "the consumer cannot begin a session: its last session has not ended",
                advice="Leave that session first",
            )
        self.session = session

    def end_session(self, session: BaseSession) -> None:
        if self.session is session:
            self.session = None

    def check_may_poll(self) -> None:
        if not self.subscription.is_begun:
            raise ClientMisused(
                "the consumer cannot poll: it has neither a subscription nor an assignment",
                advice="Call subscribe() or assign() first, or give the consumer its `topics`",
            )
        if self.session is not None:
            raise ClientMisused(
                "the consumer cannot poll inside a session", advice="Read the session's claims instead"
            )

    async def wait_for_rebalance(self, timeout: float) -> None:
        """Wait until a rebalance is due, or the time is over."""
        assert self.group is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.group.rebalance_due_event.wait()

    # ---- offsets

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        group, _ = self.need_group("committed()")
        return await group.committed(partitions, self.timeout_seconds if timeout is None else timeout)

    def need_group(self, call: str) -> tuple[GroupCoordinator, Commits]:
        """The group, for `call`, which raises ClientMisused without one."""
        if self.group is None or self.commits is None:
            raise ClientMisused(
                f"{call} needs a group, and the consumer has none", advice="Give the consumer a `group`"
            )
        return self.group, self.commits

    async def all_topics(self) -> set[str]:
        """The names of all topics, asked for now."""

        async def attempt() -> MetadataResponse:
            response: MetadataResponse = await self.network.call_any(
                Versioned(MetadataRequest, _ask_for_all_topics)
            )
            return response

        response = await self.network.retrying("asking for all topics", self.timeout_seconds, attempt)
        excludes = self.config.bool_("exclude.internal.topics")
        return {
            topic.name
            for topic in response.topics
            if topic.name is not None
            and topic.error_code == ErrorCode.NONE
            and not (topic.is_internal and excludes)
        }

    async def partitions_of(self, topic: str, timeout: float) -> list[int]:
        """The partitions of a topic, asked for now. Creates no topic, and does not wait for one.

        The topic is not added to those of the metadata: later refreshes could bring it back after it was
        deleted.
        """

        async def attempt() -> MetadataResponseTopic | None:
            response: MetadataResponse = await self.network.call_any(
                Versioned(MetadataRequest, lambda version: _ask_for_topic(topic, version))
            )
            found = next((each for each in response.topics if each.name == topic), None)
            if found is None or found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            if found.error_code != ErrorCode.NONE:
                raise BrokerError.of(found.error_code, what)
            return found

        what = f"looking for topic {topic!r}"
        found = await self.network.retrying(what, timeout, attempt)
        if found is None:
            raise BrokerError.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        return sorted(partition.partition_index for partition in found.partitions)

    async def position(self, partition: TopicPartition) -> int:
        """The next offset to be handed out, waited for if it is still being looked up."""

        async def attempt() -> int:
            while True:
                known = self.positions.position(partition)
                if known is not None:
                    return known.offset
                self.positions.raise_error(partition)
                await self.wait_for_change()

        return await self.network.retrying(
            f"finding the position in {partition}", self.timeout_seconds, attempt
        )

    async def wait_for_change(self) -> None:
        """Wait until something was looked up or fetched."""
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def assigned_of(self, given: Collection[TopicPartition] | None) -> list[TopicPartition]:
        """The given partitions, all of which must be assigned; all assigned ones if none were given."""
        chosen = list(self.positions.states if given is None else given)
        for partition in chosen:
            self.positions.get(partition)
        return chosen


async def _call_here(listener: Listener, partitions: set[TopicPartition]) -> None:
    result = listener(partitions)
    if inspect.isawaitable(result):
        await result


def _ask_for_all_topics(version: int) -> MetadataRequest:
    # Version 0 asks for all topics with an empty list, later versions with null.
    return MetadataRequest(topics=None if version else [], allow_auto_topic_creation=version < 4)


def _ask_for_topic(name: str, version: int) -> MetadataRequest:
    # Versions below 4 cannot say that no topic is to be created.
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=version < 4)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
