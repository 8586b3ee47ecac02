"""Asks the cluster what the sender must know: topics that records wait for, and the producer id.

If the look-up of a topic fails, the records that waited for it fail. Metadata that were fetched for other
reasons are taken over, too: new partitions, new leaders. A topic that was deleted, or that nobody has sent to
for metadata.max.idle.ms, is left out of the metadata requests until somebody sends to it again.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from klamm.client.errors import BrokerError, ClientError, TimedOut, UnknownTopic
from klamm.client.logs import ClientLogger
from klamm.client.network.metadata import MetadataChange, TopicMetadata
from klamm.client.network.network import Network
from klamm.client.producer.accumulator import Accumulator
from klamm.client.producer.background import BackgroundTasks
from klamm.client.producer.settling import Settling
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest

LOOKUP_MARGIN = 0.05
"""The look-up of a topic times out earlier than the records that wait for it, by this share of max.block.ms:
the error of the look-up says more than the time-out of a record."""

LEAST_MARGIN_S = 0.25
"""At least this much earlier, because the network ends a request slightly after its time-out."""

FEED = "feed columns"
"""The names of tasks that feed columns begin with this."""

_TRANSACTION_TIMEOUT_MS = 2**31 - 1
"""The request must have one. Brokers ignore it for producers without transactions."""


class Lookups:
    """The look-ups of one producer. `wake` makes the sender pass, after something became known."""

    def __init__(
        self,
        network: Network,
        settling: Settling,
        lock: AbstractContextManager[Any],
        background: BackgroundTasks,
        logger: ClientLogger,
        wake: Callable[[], None],
    ) -> None:
        self._network = network
        self._settling = settling
        self._accumulator: Accumulator[Any] = settling.accumulator
        self._settings = settling.accumulator.settings
        self._lock = lock
        self._background = background
        self._logger = logger
        self._wake = wake
        self._id_failures = 0
        """How many times in a row getting a producer id failed."""
        network.on_metadata(self._metadata_changed)

    # ---- topics

    def look_up(self, topic: str) -> None:
        """Look up a topic that has unplaced records."""
        self._background.start(f"look up {topic}", self._look_up(topic))

    async def topic(self, name: str, timeout: float | None = None) -> TopicMetadata:
        """A topic, as soon as it is known. Raises UnknownTopic if it does not exist when the time is over."""
        patience = self._settings.max_block if timeout is None else timeout
        try:
            return await self._network.topic(name, patience)
        except TimedOut as error:
            raise _named(error, name) from error

    async def want_topic(self, topic: str) -> None:
        """Make a topic known to the accumulator, even if not all of its partitions have a leader."""
        if topic in self._accumulator.topics:
            return
        try:
            await self.topic(topic)
        except ClientError:
            known = self._network.metadata.topics.get(topic)
            if known is None or not known.exists:
                raise
        with self._lock:
            self._take_topic(topic, is_wanted=True)

    def _metadata_changed(self, change: MetadataChange) -> None:
        """Called after every refresh: partitions may be new, leaders may have changed, topics may be
        unused."""
        names = change.added | change.grown | change.recreated | {each.topic for each in change.leaders}
        with self._lock:
            for name in names:
                self._take_topic(name)
            unused: list[str] = []
            if not self._background.under_way(FEED):  # a feed needs its topic to stay known
                unused = self._accumulator.retire_unused_topics(change.removed)
        self._network.drop_topics(unused)
        if names or self._accumulator.schedule.leaderless:
            self._wake()

    def _take_topic(self, name: str, *, looked_up: bool = False, is_wanted: bool = False) -> None:
        known = self._network.metadata.topics.get(name)
        if known is not None and known.exists:
            has_leader = [each.leader >= 0 for each in known.partitions]
            self._accumulator.topic_known(name, has_leader, looked_up=looked_up, is_wanted=is_wanted)

    async def _look_up(self, topic: str) -> None:
        has_unplaced = True
        while has_unplaced:
            started = time.monotonic()
            error = await self._ask_about(topic)
            with self._lock:
                self._take_topic(topic, looked_up=error is None)
                if error is not None:
                    self._accumulator.topic_failed(topic, error, started if error.retriable else math.inf)
                # Records that came meanwhile have a later deadline.
                has_unplaced = topic in self._accumulator.unplaced_topics
            self._wake()
        if error is not None and topic not in self._accumulator.topics:
            self._network.drop_topics([topic])

    async def _ask_about(self, topic: str) -> ClientError | None:
        max_block = self._settings.max_block
        patience = max_block - max(max_block * LOOKUP_MARGIN, min(LEAST_MARGIN_S, max_block / 2))
        try:
            if topic in self._accumulator.topics:
                # A record names a partition that the topic did not have in the latest metadata.
                async with asyncio.timeout(patience):
                    await self._network.request_refresh()
            else:
                await self._network.topic(topic, patience)
        except TimedOut as error:
            return _named(error, topic)
        except ClientError as error:
            return error
        except TimeoutError:
            return TimedOut(f"looking for the partitions of {topic!r}", patience)
        return None

    # ---- the producer's id

    async def producer_id(self) -> int:
        """The producer id. If there is none, asks a broker for one, for at most `max_block_ms`."""
        identity = self._accumulator.identity
        if identity.is_wanted:
            producer_id = await self._network.retrying(
                "getting a producer id", self._settings.max_block, self._ask_producer_id
            )
            with self._lock:
                if identity.is_wanted:
                    identity.producer_id = producer_id
                    self._accumulator.schedule.id_arrived(time.monotonic())
            self._wake()
        return identity.producer_id

    def get_producer_id(self) -> None:
        self._background.start("get a producer id", self._get_producer_id())

    async def _get_producer_id(self) -> None:
        try:
            producer_id = await self._network.retrying(
                "getting a producer id", self._settings.delivery_timeout, self._ask_producer_id
            )
        except ClientError as error:
            self._logger.warning("no producer id: %s", error)
            with self._lock:
                self._settling.no_producer_id(error)
            self._wake()  # the waiters of failed records are called before the pause
            self._id_failures += 1
            await asyncio.sleep(self._settings.backoff.pause(self._id_failures, random.random()))
        else:
            self._id_failures = 0
            with self._lock:
                self._accumulator.identity.producer_id = producer_id
                self._accumulator.schedule.id_arrived(time.monotonic())
        self._wake()

    async def _ask_producer_id(self) -> int:
        answer = await self._network.call_any(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        )
        if answer.error_code:
            raise BrokerError.of(answer.error_code, "getting a producer id")
        return int(answer.producer_id)


def _named(error: TimedOut, topic: str) -> ClientError:
    """A topic that nobody knows is an UnknownTopic, however long it took to be sure."""
    if isinstance(error.cause, UnknownTopic):
        return BrokerError.of(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"looking for topic {topic!r}",
            f"it was not there within {error.seconds:.3g} s",
        )
    return error
