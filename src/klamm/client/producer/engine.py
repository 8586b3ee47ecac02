"""The producer that both faces, plain and asyncio, are built on.

The engine makes and closes the parts: network, cores, sender. The faces differ in how their users wait, and
in the lock: with the plain face user threads append while the client's thread sends; with asyncio there is
only one thread, and nothing to lock.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias
from weakref import WeakSet

from klamm.client.arguments import seconds_left
from klamm.client.errors import BufferFull, ClientClosed, ClientError, TimedOut
from klamm.client.guard import ClientGuard, ForkAware
from klamm.client.logs import client_logger
from klamm.client.network.network import Network
from klamm.client.producer.accumulator import Accumulator, DeliveryT
from klamm.client.producer.background import BackgroundTasks
from klamm.client.producer.batches import RECORD_MEMORY_BYTES, Batch, Outcome, Waiter
from klamm.client.producer.delivery import RangesDelivery
from klamm.client.producer.lookups import FEED
from klamm.client.producer.partitioners import Partitioner
from klamm.client.producer.sender import Sender
from klamm.client.producer.settings import ProducerSettings
from klamm.client.producer.settling import Settling
from klamm.client.producer.unseen import UnseenFailures
from klamm.config.client_config import ClientConfig

if TYPE_CHECKING:  # they need klamm[arrow]
    from klamm.client.producer.columns import ColumnFeed
    from klamm.records.arrow_encoding import EncodedRecords

ROOM_SHARE = 8
"""A caller that found the memory full waits until one part in so many is free. So callers wait once in a
while, and not for every record."""

MOST_FEEDS = 8
"""How many calls of `send_arrow` may wait to be queued: the rows of all of them are in memory."""


MakeFeed: TypeAlias = "Callable[[], ColumnFeed]"


class Wakeable:
    """A waiter for a coroutine, which awaits `future`. Calling the waiter, on the loop, ends the future.

    A call after the coroutine was cancelled does nothing.
    """

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def __call__(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class RoomWaiter:
    """The place of a coroutine in the RoomQueue. It needs room for a record and for `size` bytes."""

    __slots__ = ("is_woken", "size", "wake")

    def __init__(self, size: int, wake: Wakeable) -> None:
        self.size = size
        self.wake = wake
        self.is_woken = False
        """True from the moment when it is woken until the coroutine runs."""


class RoomQueue:
    """The coroutines that wait for room in a producer's memory, in the order in which they came.

    A coroutine goes on if it is the first of the queue and finds room at the moment when it runs. Its caller
    sends before any other coroutine runs, so nobody can take the room from it. Those that were woken and find
    no room keep their places and wait on. So it does not matter how many are woken at once: one at first, and
    then twice as many each time, as long as all of them find room.
    """

    def __init__(
        self,
        free: Callable[[], int],
        room_for: Callable[[int], int],
        ask_for_room: Callable[[Waiter, int], None],
    ) -> None:
        """`free` tells how many bytes are free, and `room_for(size)` how many must be free for a record and
        for `size` bytes. `ask_for_room(waiter, size)` has `waiter` called when as many may be free."""
        self._free = free
        self._room_for = room_for
        self._ask_for_room = ask_for_room
        self.waiting: deque[RoomWaiter] = deque()
        self._woken = 0
        """How many of them are woken and did not run yet."""
        self._is_asked = False
        """True if `_room_came` will be called."""
        self._wake_next = 1
        """How many are woken at once."""

    def may_pass(self) -> bool:
        """True if a record may be sent before those that wait, because there is room for the first of them
        too. Otherwise the queue would not end while tasks send in a loop: each of them would wait for its
        turn after each record, however little of the memory is used."""
        return not self._is_asked and self._free() >= self._room_for(0) + self._room_for(self.waiting[0].size)

    async def wait(self, size: int) -> None:
        """Wait until there is room for a record and for `size` bytes, after all that wait already."""
        loop = asyncio.get_running_loop()
        waiter = RoomWaiter(size, Wakeable(loop))
        self.waiting.append(waiter)
        try:
            self._serve()
            await waiter.wake.future
            while self.waiting[0] is not waiter or self._free() < self._room_for(size):
                self._ran(waiter)
                self._wake_next = 1
                waiter.wake = Wakeable(loop)
                self._serve()
                await waiter.wake.future
        finally:
            self._ran(waiter)
            self.waiting.remove(waiter)
            # In the loop's next iteration the caller has sent: if room is asked for then, its record does not
            # linger.
            loop.call_soon(self._serve)

    def _ran(self, waiter: RoomWaiter) -> None:
        if waiter.is_woken:
            waiter.is_woken = False
            self._woken -= 1

    def _serve(self) -> None:
        """Unless some are woken already: wake the next ones if there is room, or else ask for room."""
        if self._woken or self._is_asked or not self.waiting:
            return
        first = self.waiting[0]
        if self._free() < self._room_for(first.size):
            self._is_asked = True
            self._ask_for_room(self._room_came, first.size)
            return
        for waiter in islice(self.waiting, self._wake_next):
            waiter.is_woken = True
            waiter.wake()
            self._woken += 1
        self._wake_next = 2 * self._woken

    def _room_came(self) -> None:
        self._is_asked = False
        self._serve()


class Engine(ForkAware, Generic[DeliveryT]):
    """See the module. All methods run on the client's loop, except `counters` and those that say so."""

    def __init__(
        self,
        config: ClientConfig,
        delivery_class: type[DeliveryT],
        *,
        lock: AbstractContextManager[Any],
        partitioner: Partitioner | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.settings = ProducerSettings.of(config)
        self.partitioner = partitioner
        self._lock = lock
        self._network = Network(config, ssl_context=ssl_context)
        self._guard = ClientGuard("producer", self._network.client_id)
        self.accumulator = Accumulator(
            self.settings,
            delivery_class,
            clock=time.monotonic,
            now_ms=_now_ms,
            first_partition=random.randrange,
            partitioner=partitioner,
            counters=self._network.counters,
        )
        self._settling = Settling(self.accumulator)
        self._logger = client_logger("producer", self._network.client_id)
        self._background = BackgroundTasks(self._logger)
        self._unseen = UnseenFailures(self._logger)
        self.accumulator.ledger.on_unseen = self._unseen.add
        self.sender = Sender(self._network, self._settling, lock, self._background, self._logger)
        memory = self.settings.buffer_bytes
        self._record_room = min(self.settings.max_request_bytes + RECORD_MEMORY_BYTES, memory // 2)
        """Bytes that must be free for one record before a caller that waits for room goes on."""
        self._room_queue = RoomQueue(self._free, self._room_for, self._ask_for_room)
        self._feeding = asyncio.Lock()
        """One set of columns is fed at a time, so that rows stay in the order of the calls."""
        self._feeds = 0
        self._fed_deliveries: WeakSet[RangesDelivery] = WeakSet()

    # ---- life

    def after_fork(self) -> None:
        """In a forked child: fail all records that were on their way, because no answer will come here."""
        super().after_fork()
        self._unseen.is_forked = True
        error = self._guard.forked_error()
        for batch in self.accumulator.ledger.unsettled():
            batch.outcome = Outcome(error=error)
        for delivery in self._fed_deliveries:
            delivery.end_feed(error)

    async def start(self) -> None:
        """Start. Connections are made when they are needed first."""
        self._guard.check()
        self._unseen.loop = asyncio.get_running_loop()
        if not self._guard.started:
            self._guard.started = True
            await self._network.start()

    async def close(self, timeout: float | None = None) -> None:
        """Send all records, for at most `timeout` seconds; records that are left then fail. Connections are
        closed in the rest of that time."""
        if not self._guard.begin_close():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        closed = ClientClosed(
            f"producer {self._network.client_id} was closed before the record was acknowledged"
        )
        try:
            if self._guard.started:
                await self.flush(timeout)
        except TimedOut as error:
            self._logger.warning("closed with records unsent: %s", error)
        finally:
            with self._lock:
                self.accumulator.close(closed)
                self._settling.fail_all(closed)
            await self._background.close()
            self.sender.end()
            await self._network.close(None if deadline is None else seconds_left(deadline))
            self.sender.call_finished()  # requests that were under way have failed only now, and made room
            self._unseen.close()

    def counters(self) -> dict[str, float]:
        """The counters so far, by name. From any thread."""
        with self._lock:
            self.accumulator.ledger.count_waiting()
        return self._network.counters.as_dict()

    async def partitions_for(self, topic: str, timeout: float | None) -> list[int]:
        """The partitions of a topic. Waits until the topic is known."""
        self._guard.started = True
        known = await self.sender.lookups.topic(topic, timeout)
        return [each.index for each in known.partitions]

    async def producer_id(self) -> int:
        """The producer id of this idempotent producer. Waits until a broker has given one."""
        self._guard.started = True
        return await self.sender.lookups.producer_id()

    # ---- waiting

    async def flush(self, timeout: float | None = None) -> None:
        """Send all records without linger time, and wait until their batches are settled."""
        ledger = self.accumulator.ledger
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiter = Wakeable(loop)
        try:
            async with asyncio.timeout(timeout):
                await self.fed()
                with self._lock:
                    ledger.add_flush_waiter(self.accumulator.flush(), waiter)
                self.sender.pump()
                await waiter.future
        except TimeoutError:
            with self._lock:
                ledger.count_waiting()
                cause = next((batch.last_error for batch in ledger.unsettled() if batch.last_error), None)
            left = self._network.counters.records_waiting
            raise TimedOut(
                f"flushing, with {left} records left,",
                loop.time() - began,
                cause=cause or self._network.last_error,
            ) from None
        finally:
            with self._lock:
                ledger.drop_flush_waiter(waiter)

    def has_room(self) -> bool:
        """True if `append` would take a large record now: of `max_request_size` (or half the memory if that
        is less), or as large as the largest record that found no room so far."""
        return self.accumulator.ledger.memory_used + self._room_for(0) <= self.settings.buffer_bytes

    def make_room(self, waiter: Waiter, size: int = 0) -> None:
        """Have `waiter` called when there is room for a record and for `size` bytes (at most the whole
        memory).

        Under the lock; the caller must then make the sender pass.
        """
        self.accumulator.flush()  # no batch may linger while callers wait for its memory
        memory = self.settings.buffer_bytes
        most_used = max(memory - max(self._room_for(size), memory // ROOM_SHARE), 0)
        self.accumulator.ledger.add_room_waiter(most_used, waiter)

    async def drain(self) -> None:
        """Wait until there is room for a record, after the coroutines that wait already; unless there is
        room for the first of them too."""
        queue = self._room_queue
        if not (queue.may_pass() if queue.waiting else self.has_room()):
            await queue.wait(0)

    def _ask_for_room(self, waiter: Waiter, size: int) -> None:
        with self._lock:
            self.make_room(waiter, size)
        self.sender.pump()

    def _free(self) -> int:
        return self.settings.buffer_bytes - self.accumulator.ledger.memory_used

    def _room_for(self, size: int) -> int:
        """The bytes that must be free before a record, or `size` bytes of encoded records, may be
        appended."""
        wanted = max(self._record_room, self.accumulator.largest_refused, size)
        return min(wanted, self.settings.buffer_bytes)

    # ---- columns

    def feed_soon(self, feed: ColumnFeed | MakeFeed, delivery: RangesDelivery) -> None:
        """Feed in a task. Raises BufferFull if MOST_FEEDS wait already."""
        if callable(feed) and any(find_spec(package) is None for package in ("numba", "numpy", "pyarrow")):
            feed()  # raises an error that names the missing package
        if len(self._background.under_way(FEED)) >= MOST_FEEDS:
            raise BufferFull(
                f"{MOST_FEEDS} calls of send_arrow wait to be queued already",
                advice="Wait with `await producer.drain()`",
            )
        self._feeds += 1
        self._guard.started = True
        self._background.start(f"{FEED} {self._feeds}", self.feed(feed, delivery))

    async def fed(self) -> None:
        """Wait until the rows of all `send_arrow` calls so far are in batches."""
        feeds = self._background.under_way(FEED)
        if feeds:
            await asyncio.wait(feeds)

    async def feed(self, feed: ColumnFeed | MakeFeed, delivery: RangesDelivery) -> None:
        """Put the rows of a feed into batches, as room allows. Errors end up in the delivery.

        If `feed` is a function that makes the feed, it is called in a thread, because it loads numba.
        """
        failure: ClientError | None = ClientClosed("the producer was closed before all rows were queued")
        self._fed_deliveries.add(delivery)
        try:
            async with self._feeding:
                if callable(feed):
                    feed = await asyncio.to_thread(feed)
                await self.sender.lookups.want_topic(feed.topic)
                while await self._feed_slice(feed, delivery):
                    self.sender.pump()
                    await asyncio.sleep(0)
            failure = None
        except ClientError as error:
            failure = error
        except Exception as error:
            self._logger.exception("rows could not be queued")
            failure = ClientError(f"rows could not be queued: {error!r}")
        finally:
            delivery.end_feed(failure)

    async def _feed_slice(self, feed: ColumnFeed, delivery: RangesDelivery) -> bool:
        buffer = self.accumulator.topics[feed.topic]
        batches = feed.next_batches(len(buffer.queues), buffer.rotation(), _now_ms())
        for records in batches or ():
            delivery.feed(await self._append_encoded(feed.topic, records))
        with self._lock:
            buffer.switch_sticky()
        return batches is not None

    async def _append_encoded(self, topic: str, records: EncodedRecords) -> Batch:
        size = len(records.batch)
        if self._room_queue.waiting:
            await self._room_queue.wait(size)
        while True:
            try:
                with self._lock:
                    return self.accumulator.append_encoded(
                        topic,
                        records.partition,
                        records.batch,
                        records.count,
                        records.base_timestamp,
                        records.max_timestamp,
                    )
            except BufferFull:
                await self._room_queue.wait(size)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
