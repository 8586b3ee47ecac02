"""Sends what the accumulator gathers: one request per broker with one batch per partition, several under way.

Everything here runs on the client's event loop, in callbacks rather than a task: a turn (`pump`) takes all
that may be sent now, and the answer to a request starts the next turn at once. The cores are used under
`lock`, because with the plain face other threads append at the same time; nothing is encoded, sent or called
back under it. Errands that take their time (connecting, looking up topics, getting a producer id) are tasks,
each at most once at a time, and end with `close`.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic

from klamm.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    TimedOut,
    UnknownTopic,
)
from klamm.client.guard import ClientGuard
from klamm.client.logs import client_logger
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.metadata import MetadataChange, TopicMetadata
from klamm.client.network.network import Network
from klamm.client.producer.accumulator import Accumulator, DeliveryT
from klamm.client.producer.batches import RECORD_MEMORY_BYTES, Batch, Waiter
from klamm.client.producer.partitioners import Partitioner
from klamm.client.producer.requests import ProduceCall
from klamm.client.producer.settings import ProducerSettings
from klamm.client.producer.settling import Answer, Settling
from klamm.client.producer.waking import Wakeable
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k00_produce import ProduceResponse
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdRequest

ROOM_SHARE = 8
"""Who waits for room waits until this part of the memory is free: so there is a wait once in a while and not
one for every record."""

LOOKUP_MARGIN = 0.05
"""A look-up of a topic gives up by this share of the time earlier than the records that wait for it, because
its error says more than theirs."""

_TRANSACTION_TIMEOUT_MS = 2**31 - 1
"""Brokers want one even of producers without transactions, and take no notice of it."""


class _Broker:
    """How things stand with one broker."""

    __slots__ = ("connection", "failures", "in_flight", "is_busy", "node_id", "not_before")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: BrokerConnection | None = None
        self.in_flight = 0
        self.is_busy = False
        """A task waits until it can be written to."""
        self.failures = 0
        self.not_before = 0.0


class Sender(Generic[DeliveryT]):
    """A producer without a face."""

    def __init__(
        self,
        config: ClientConfig,
        delivery_class: type[DeliveryT],
        *,
        lock: AbstractContextManager[Any],
        partitioner: Partitioner | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = ProducerSettings.of(config)
        self.network = Network(config, ssl_context=ssl_context)
        self.lock = lock
        self.wake_pending = False
        """Whether `pump` was asked for and has not begun yet. Used under the lock."""
        self._guard = ClientGuard("producer", self.network.client_id)
        self.accumulator = Accumulator(
            self.settings,
            delivery_class,
            clock=time.monotonic,
            now_ms=_now_ms,
            first_partition=random.randrange,
            partitioner=partitioner,
            counters=self.network.counters,
        )
        self.settling = Settling(self.accumulator)
        memory = self.settings.buffer_bytes
        self._room_until = memory - min(self.settings.max_request_bytes + RECORD_MEMORY_BYTES, memory // 2)
        self._room_from = min(self._room_until, memory - memory // ROOM_SHARE)
        """Those who wait for room go on when no more bytes than these are in use."""
        self._logger = client_logger("producer", self.network.client_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._brokers: dict[int, _Broker] = {}
        self._errands: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._expiry_at = math.inf
        """When the first batch runs out of time."""
        self._has_ended = False

    # ---- life

    def begin(self) -> asyncio.AbstractEventLoop:
        """Take up work on the running loop, unless that is done already."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._guard.started = True
            self.network.on_metadata(self._metadata_changed)
        return self._loop

    async def start(self) -> None:
        self._guard.check()
        if self._loop is None:
            self.begin()
            await self.network.start()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is here, for at most `timeout` seconds; what is left then has failed."""
        if not self._guard.begin_close():
            return
        closed = ClientClosed(f"producer {self.network.client_id} was closed before the record was sent")
        try:
            if self._loop is not None:
                await self.flush(timeout)
        except TimedOut as error:
            self._logger.warning("closed with records unsent: %s", error)
        finally:
            with self.lock:
                self.accumulator.close(closed)
                self.settling.fail_all(closed)
            self._has_ended = True
            self.call_finished()
            self._disarm()
            for task in self._errands.values():
                task.cancel()
            await asyncio.gather(*self._errands.values(), return_exceptions=True)
            await self.network.close()

    def counters(self) -> dict[str, float]:
        with self.lock:
            self.accumulator.ledger.count_waiting()
        return self.network.counters.as_dict()

    # ---- waiting

    async def flush(self, timeout: float | None = None) -> None:
        """Send all that is here without lingering, and wait until it is settled."""
        ledger = self.accumulator.ledger
        waiter = Wakeable(self.begin())
        with self.lock:
            ledger.add_flush_waiter(self.accumulator.flush(), waiter)
        self.pump()
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            with self.lock:
                ledger.count_waiting()
            left = self.network.counters.records_waiting
            raise TimedOut(f"flushing, with {left} records left,", timeout or 0.0) from None
        finally:
            with self.lock:
                ledger.drop_flush_waiter(waiter)

    def has_room(self) -> bool:
        """Whether a record of any size that is allowed would be taken."""
        return self.accumulator.ledger.memory_used <= self._room_until

    def make_room(self, waiter: Waiter) -> None:
        """Have `waiter` called when there is room. Under the lock; a turn must follow."""
        self.accumulator.flush()  # nothing may linger while others wait for its place
        self.accumulator.ledger.add_room_waiter(self._room_from, waiter)

    async def room(self) -> None:
        """Wait until there is room."""
        waiter = Wakeable(self.begin())
        with self.lock:
            self.make_room(waiter)
        self.pump()
        try:
            await waiter.future
        finally:
            with self.lock:
                self.accumulator.ledger.drop_room_waiter(waiter)

    async def topic(self, name: str, timeout: float | None = None) -> TopicMetadata:
        """A topic as soon as it is known; its error otherwise."""
        self.begin()
        patience = self.settings.max_block if timeout is None else timeout
        try:
            return await self.network.topic(name, patience)
        except TimedOut as error:
            raise _named(error, name, patience) from error

    # ---- turns

    def wake(self) -> None:
        """Have a turn soon. On the loop."""
        if not self.wake_pending:
            self.wake_pending = True
            self.begin().call_soon(self.pump)

    def pump(self) -> None:
        """One turn: send all that may be sent now, and see to it that the next turn comes in time."""
        if self._has_ended:
            self.call_finished()
            return
        accumulator, schedule = self.accumulator, self.accumulator.schedule
        calls: list[tuple[_Broker, list[Batch]]] = []
        with self.lock:
            self.wake_pending = False
            accumulator.wake_wanted = False
            now = time.monotonic()
            if now >= self._expiry_at:
                self.settling.expire(now)
            schedule.tick(now)
            while schedule.has_ready:
                taken = schedule.drain(
                    now, self.network.metadata.leader, self._may_take, self.settings.max_request_bytes
                )
                if not taken:
                    break
                for node, batches in taken.items():
                    broker = self._brokers[node]
                    broker.in_flight += 1
                    calls.append((broker, batches))
            lookups, accumulator.lookups = accumulator.lookups, set()
            self._expiry_at = self.settling.next_deadline()
            next_at = min(schedule.next_due(), self._expiry_at)
        for broker, batches in calls:
            self._send(broker, batches)
        for topic in lookups:
            self._errand(f"look up {topic}", self._look_up(topic))
        if schedule.has_ready and schedule.has_leaderless:
            self.network.request_refresh()
        if self.settings.idempotent and accumulator.identity.is_wanted:
            self._errand("producer id", self._get_producer_id())
        self._arm(next_at, now)
        self.call_finished()

    def call_finished(self) -> None:
        """Call all who waited for what is settled now."""
        ledger = self.accumulator.ledger
        while ledger.finished:
            with self.lock:
                waiters, ledger.finished = ledger.finished, []
            for waiter in waiters:
                waiter()

    def _arm(self, at: float, now: float) -> None:
        """Have a turn at a time. One that is due earlier will see to it then."""
        if at >= self._timer_at:
            return
        self._disarm()
        # uvloop counts in milliseconds and rounds; a turn that comes too early would come in vain.
        delay = math.ceil(max(at - now, 0.0) * 1000) / 1000
        self._timer_at = at
        self._timer = self.begin().call_later(delay, self._timer_rang)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = math.inf

    def _timer_rang(self) -> None:
        self._disarm()
        self.pump()

    # ---- brokers

    def _may_take(self, node: int) -> bool:
        """Whether a broker takes a request now; sees to it that it will."""
        broker = self._brokers.get(node)
        if broker is None:
            broker = self._brokers[node] = _Broker(node)
        if broker.is_busy or broker.in_flight >= self.settings.max_in_flight:
            return False
        connection = self.network.open_connection(node)
        if connection is not None and connection.writable:
            broker.connection = connection
            return True
        if time.monotonic() >= broker.not_before:
            broker.is_busy = True
            self._errand(f"connect to {node}", self._make_ready(broker))
        return False

    async def _make_ready(self, broker: _Broker) -> None:
        """Connect, or wait until the connection takes more; then a turn."""
        try:
            connection = await self.network.connection(broker.node_id)
            await connection.drained()
            broker.failures = 0
        except ClientError as error:
            self._unreachable(broker, error)
        finally:
            broker.is_busy = False
        self.wake()

    def _unreachable(self, broker: _Broker, error: ClientError) -> None:
        broker.failures += 1
        pause = self.settings.backoff.pause(broker.failures, random.random())
        broker.not_before = time.monotonic() + pause
        with self.lock:
            heads = self.accumulator.schedule.ready_heads(broker.node_id, self.network.metadata.leader)
            for batch in heads:
                batch.last_error = error
            if not error.retriable:
                self.settling.fail_queues([batch.in_queue for batch in heads], error)
        self.network.request_refresh()
        self.begin().call_later(pause, self.pump)

    def _send(self, broker: _Broker, batches: list[Batch]) -> None:
        connection = broker.connection
        assert connection is not None
        try:
            call = ProduceCall(batches, self.network.metadata, self.settings)
            version = connection.version(ApiKey.PRODUCE, call.max_version)
            call.check_version(version, str(connection.address))
            if self.settings.acks == 0:
                connection.send_without_answer(call.request, version)
                self._written(broker, batches)
                return
            future = connection.send(call.request, version)
        except ClientError as error:
            self._failed(broker, batches, error)
        except Exception as error:
            self._logger.exception("a request could not be made")
            self._failed(broker, batches, ClientError(f"a request could not be made: {error!r}"))
        else:
            future.add_done_callback(partial(self._answered, broker, call, version, str(connection.address)))

    def _written(self, broker: _Broker, batches: list[Batch]) -> None:
        """Nobody answers with acks=0."""
        broker.in_flight -= 1
        now = time.monotonic()
        with self.lock:
            for batch in batches:
                self.settling.answered(batch, Answer(ErrorCode.NONE), "", now, chance=0.0)
        self.wake()

    def _failed(self, broker: _Broker, batches: list[Batch], error: ClientError) -> None:
        """There is no answer, and there will be none."""
        broker.in_flight -= 1
        now = time.monotonic()
        self._logger.debug("no answer to %d batches: %s", len(batches), error)
        with self.lock:
            for batch in batches:
                self.settling.lost(batch, error, now, chance=random.random())
        if not self._has_ended:
            self.network.request_refresh()
        self.wake()

    def _answered(
        self,
        broker: _Broker,
        call: ProduceCall,
        version: int,
        address: str,
        future: asyncio.Future[ProduceResponse],
    ) -> None:
        failure = ConnectionFailed("the request was cancelled") if future.cancelled() else future.exception()
        if failure is not None:
            if not isinstance(failure, ClientError):
                failure = ConnectionFailed(f"the answer could not be read: {failure!r}")
            self._failed(broker, call.batches, failure)
            return
        broker.in_flight -= 1
        now = time.monotonic()
        unnamed = dict.fromkeys(call.batches)
        is_stale = False
        with self.lock:
            learn = self.network.metadata.learn_leader
            for batch, answer, has_moved, stale in call.answers(future.result(), version, learn):
                del unnamed[batch]
                is_stale = is_stale or stale
                self.settling.answered(batch, answer, address, now, chance=random.random(), moved=has_moved)
            for batch in unnamed:
                missing = ConnectionFailed(f"an answer does not speak of {batch.topic}-{batch.partition}")
                self.settling.lost(batch, missing, now, chance=random.random())
        if is_stale:
            self.network.request_refresh()
        self.pump()

    # ---- errands

    def _errand(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something in a task, unless it is being done."""
        if name in self._errands or self._has_ended:
            work.close()
            return
        task = self.begin().create_task(work, name=f"klamm-producer-{name}")
        self._errands[name] = task
        task.add_done_callback(partial(self._errand_done, name))

    def _errand_done(self, name: str, task: asyncio.Task[None]) -> None:
        self._errands.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("could not %s", name, exc_info=error)

    def _metadata_changed(self, change: MetadataChange) -> None:
        """After every refresh: partitions may have come, leaders may have moved."""
        accumulator = self.accumulator
        names = change.added | change.grown | change.recreated | {each.topic for each in change.leaders}
        with self.lock:
            for name in names:
                self._take_topic(name)
        if names or accumulator.schedule.has_leaderless:
            self.wake()

    def _take_topic(self, name: str, looked_up: bool = False) -> None:
        known = self.network.metadata.topics.get(name)
        if known is not None and known.exists:
            has_leader = [each.leader >= 0 for each in known.partitions]
            self.accumulator.topic_known(name, has_leader, looked_up)

    async def _look_up(self, topic: str) -> None:
        """Find out about a topic that records wait for."""
        started = time.monotonic()
        patience = self.settings.max_block * (1 - LOOKUP_MARGIN)
        error: ClientError | None = None
        try:
            if topic in self.accumulator.topics:
                # A partition is wanted that it did not have when we last looked.
                async with asyncio.timeout(patience):
                    await self.network.request_refresh()
            else:
                await self.network.topic(topic, patience)
        except TimedOut as timed_out:
            error = _named(timed_out, topic, self.settings.max_block)
        except ClientError as failed:
            error = failed
        except TimeoutError:
            error = TimedOut(f"looking for the partitions of {topic!r}", patience)
        with self.lock:
            self._take_topic(topic, looked_up=error is None)
            if error is not None:
                self.accumulator.topic_failed(topic, error, started if error.retriable else math.inf)
            is_held = topic in self.accumulator.holding
            if is_held:
                self.accumulator.lookups.add(topic)
        if error is not None and not is_held and topic not in self.accumulator.topics:
            self.network.drop_topics([topic])
        self._errands.pop(f"look up {topic}", None)  # so that the next turn may look again
        self.wake()

    async def _get_producer_id(self) -> None:
        try:
            producer_id = await self.network.retrying(
                "getting a producer id", self.settings.delivery_timeout, self._ask_producer_id
            )
        except ClientError as error:
            self._logger.warning("no producer id: %s", error)
            if not error.retriable:
                with self.lock:
                    self.settling.fail_waiting(error)
            self.call_finished()
            return
        with self.lock:
            self.accumulator.identity.producer_id = producer_id
            self.accumulator.schedule.id_arrived(time.monotonic())
        self.pump()

    async def _ask_producer_id(self) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        answer = await self.network.call_any(request)
        if answer.error_code:
            raise BrokerError.of(answer.error_code, "getting a producer id")
        return int(answer.producer_id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _named(error: TimedOut, topic: str, seconds: float) -> ClientError:
    """A topic that nobody knows is an UnknownTopic, however long it took to be sure."""
    if isinstance(error.cause, UnknownTopic):
        return BrokerError.of(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"looking for topic {topic!r}",
            f"it was not there within {seconds:g} s",
        )
    return error
