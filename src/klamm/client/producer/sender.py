"""Sends the accumulator's batches: one request per broker with one batch per partition, several under way.

Everything here runs on the client's event loop, in callbacks rather than in a task. A pass (`pump`) sends all
batches that may be sent now, and the answer to a request starts the next pass at once. The cores are used
under `lock`, because with the plain face other threads append at the same time; no batch is encoded or sent,
and no callback called, under it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from klamm.client.errors import ClientError, ConnectionFailed
from klamm.client.logs import ClientLogger
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.metadata import TopicMetadata
from klamm.client.network.network import Network
from klamm.client.producer.accumulator import Accumulator
from klamm.client.producer.background import BackgroundTasks
from klamm.client.producer.batches import Batch, Outcome
from klamm.client.producer.lookups import Lookups
from klamm.client.producer.queues import PartitionQueue
from klamm.client.producer.requests import ProduceCall, call_for, check_version
from klamm.client.producer.settling import Settling
from klamm.client.producer.template import MOST_TEMPLATE_BYTES, TEMPLATE_VERSION, ProduceTemplate
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k00_produce import ProduceResponse

_log = logging.getLogger("klamm.client.producer")


class _Broker:
    """The sender's state for one broker."""

    __slots__ = ("connection", "failures", "in_flight", "is_busy", "node_id", "not_before", "takes_templates")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: BrokerConnection | None = None
        self.takes_templates = False
        """True if the broker accepts, on this connection, the version that templates are made in."""
        self.in_flight = 0
        self.is_busy = False
        """A task waits until the connection is open and writable."""
        self.failures = 0
        self.not_before = 0.0


class _AnswerWaiter:
    """Passes the answer to one request to the sender. An exception there is logged, not raised: the
    connection must go on."""

    __slots__ = ("_address", "_broker", "_call", "_is_done", "_sender", "_version")

    def __init__(
        self, sender: Sender, broker: _Broker, call: ProduceCall, version: int, address: BrokerAddress
    ) -> None:
        self._sender = sender
        self._broker = broker
        self._call = call
        self._version = version
        self._address = address
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, response: ProduceResponse, /) -> None:
        self._is_done = True
        try:
            self._sender.answered(self._broker, self._call, self._version, self._address, response)
        except Exception:
            _log.exception("handling the answer of %s to a Produce request failed", self._address)

    def set_exception(self, error: Exception, /) -> None:
        self._is_done = True
        if not isinstance(error, ClientError):
            error = ConnectionFailed(f"the answer could not be read: {error!r}")
        self._sender.failed(self._broker, self._call.batches, error)


class _TemplateWaiter:
    """As `_AnswerWaiter`, for a request made from a template: its answer is nearly always "written"."""

    __slots__ = ("_address", "_batch", "_broker", "_is_done", "_sender", "_template")

    def __init__(
        self, sender: Sender, broker: _Broker, template: ProduceTemplate, batch: Batch, address: BrokerAddress
    ) -> None:
        self._sender = sender
        self._broker = broker
        self._template = template
        self._batch = batch
        self._address = address
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, response: ProduceResponse | Outcome, /) -> None:
        self._is_done = True
        if not isinstance(response, Outcome):
            self._in_general().set_result(response)
            return
        try:
            self._sender.written(self._broker, self._batch, response)
        except Exception:
            _log.exception("handling the answer of %s to a Produce request failed", self._address)

    def set_exception(self, error: Exception, /) -> None:
        self._is_done = True
        self._in_general().set_exception(error)

    def _in_general(self) -> _AnswerWaiter:
        batch, template = self._batch, self._template
        call = ProduceCall([batch], {batch.topic: template.topic_id})
        return _AnswerWaiter(self._sender, self._broker, call, template.version, self._address)


class Sender:
    """Sends the batches of one producer."""

    def __init__(
        self,
        network: Network,
        settling: Settling,
        lock: AbstractContextManager[Any],
        background: BackgroundTasks,
        logger: ClientLogger,
    ) -> None:
        self._network = network
        self._settling = settling
        self._accumulator: Accumulator[Any] = settling.accumulator
        self._settings = settling.accumulator.settings
        self._lock = lock
        self._background = background
        self._logger = logger
        self.lookups = Lookups(network, settling, lock, background, logger, self.wake)
        self._is_calling = False
        """True while `call_finished` calls the waiters of settled batches."""
        self.thread_loop: asyncio.AbstractEventLoop | None = None
        """With the plain face: the loop of the client's thread. User threads write to sockets themselves if
        they can. None with asyncio."""
        self.wake_pending = False
        """True if a pass was asked for and has not begun yet. Used under the lock."""
        self._brokers: dict[int, _Broker] = {}
        self._in_flight = 0
        """Requests without an answer yet, to all brokers."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._expiry_at = math.inf
        """The first deadline of a batch."""
        self._next_try_at = math.inf
        """When the first unreachable broker that batches wait for may be tried again, as of the latest
        pass."""

    # ---- passes

    def wake(self) -> None:
        """Make a pass in the next iteration of the loop. On the loop."""
        if not self.wake_pending:
            self.wake_pending = True
            asyncio.get_running_loop().call_soon(self.pump)

    def wake_or_pump(self) -> None:
        """Make a pass now if no request is under way, so that a single record leaves at once; else soon.

        Records that come while a request is under way gather in the next batch.
        """
        settings = self._settings
        # With acks=0 a record is done at once, and its callback is called at once. A callback that sends
        # would call itself.
        if self._in_flight or settings.linger or self._is_calling or settings.acks == 0:
            self.wake()
        elif not self._send_single():
            self.pump()

    def pump(self) -> None:
        """Make one pass: send all batches that may be sent now, and set the timer for the next pass."""
        if self._background.is_closed:
            self.wake_pending = False
            self.call_finished()
            return
        accumulator, schedule = self._accumulator, self._accumulator.schedule
        calls: list[tuple[_Broker, list[Batch]]] = []
        with self._lock:
            self.wake_pending = False
            accumulator.wake_wanted = False
            now = time.monotonic()
            if now >= self._expiry_at:
                self._settling.expire(now)
            if now >= schedule.next_due():
                schedule.tick(now)
            self._next_try_at = math.inf
            while schedule.has_ready:
                taken = schedule.drain(
                    now, self._network.metadata.leader, self._may_take, self._settings.max_request_bytes
                )
                if not taken:
                    break
                for node, batches in taken.items():
                    broker = self._brokers[node]
                    self._begun(broker)
                    calls.append((broker, batches))
            lookups, accumulator.lookups = accumulator.lookups, set()
            if lookups or not now < self._expiry_at < math.inf:
                # Otherwise no batch that came since has an earlier deadline.
                self._expiry_at = self._settling.next_deadline()
            next_at = min(schedule.next_due(), self._expiry_at, self._next_try_at)
        for broker, batches in calls:
            self._send(broker, batches)
        for topic in lookups:
            self.lookups.look_up(topic)
        if schedule.has_ready and schedule.leaderless:
            # Records wait for these topics, so a topic that was deleted is created again.
            self._network.request_refresh(create=schedule.leaderless)
        if self._settings.idempotent and accumulator.identity.is_wanted and accumulator.ledger.has_unsettled:
            self.lookups.get_producer_id()
        self._arm(next_at, now)
        self.call_finished()

    # ---- one batch, when there is nothing else to do

    def _send_single(self) -> bool:
        """Send the only batch there is, by its partition's template, on the loop. Returns False, and does
        nothing, if a whole pass is needed: there is more to do, or no template yet."""
        now = time.monotonic()
        queue = self._sole_queue(now)
        broker = self._template_broker(queue) if queue is not None else None
        if queue is None or broker is None:
            return False
        connection, template = broker.connection, queue.template
        assert connection is not None and template is not None
        batch = self._accumulator.schedule.take_ready(queue, now)
        if batch is None:
            return False
        self._accumulator.wake_wanted = False
        self._begun(broker)
        try:
            data = batch.encode(self._settings.codec, self._settings.level)
            connection.send_prepared(
                _TemplateWaiter(self, broker, template, batch, connection.address), template, data
            )
        except Exception as error:
            self._could_not_send(broker, [batch], error)
        return True

    def send_single_here(self) -> bool:
        """As `_send_single`, in a user's thread and under the lock: the thread writes to the socket itself.
        So the loop need not be woken to write, and only waits for the answer."""
        settings = self._settings
        if self._in_flight or settings.linger or settings.acks == 0 or self._background.is_closed:
            return False
        now = time.monotonic()
        queue = self._sole_queue(now)
        broker = self._template_broker(queue) if queue is not None else None
        if queue is None or broker is None or broker.connection is None:
            return False
        connection, template = broker.connection, queue.template
        assert template is not None and self.thread_loop is not None
        with connection.lock:
            if connection.closed or not connection.may_send_here(now):
                return False
            batch = self._accumulator.schedule.take_ready(queue, now)
            if batch is None:
                return False
            self._accumulator.wake_wanted = False
            self._begun(broker)
            try:
                data = batch.encode(settings.codec, settings.level)
                waiter = _TemplateWaiter(self, broker, template, batch, connection.address)
                connection.send_here(waiter, template, data, now)
            except Exception as error:
                failure = ClientError(f"a Produce request could not be encoded or written: {error!r}")
                self.thread_loop.call_soon_threadsafe(self.failed, broker, [batch], failure)
        return True

    def _sole_queue(self, now: float) -> PartitionQueue | None:
        """The queue whose first batch is all there is to do now; None if there is more to do, or nothing."""
        accumulator, schedule = self._accumulator, self._accumulator.schedule
        # What is due later has a timer already.
        if (
            accumulator.lookups
            or not now < self._expiry_at < math.inf
            or schedule.next_due() < self._timer_at
        ):
            return None
        return schedule.sole_ready()

    def _template_broker(self, queue: PartitionQueue) -> _Broker | None:
        """The leader that a queue's template remembers, if it still leads and can be sent a request now."""
        template = queue.template
        if template is None or queue.waiting[0].size > MOST_TEMPLATE_BYTES:
            return None
        led_by = template.led_by
        if led_by is None or led_by[0] is not self._network.metadata.topics.get(queue.topic):
            led_by = template.led_by = self._leader_by_template(queue, template)
            if led_by is None:
                return None
        broker = self._brokers.get(led_by[1])
        if broker is None or broker.is_busy or not broker.takes_templates:
            return None
        connection = broker.connection
        if connection is None or connection.is_retired or not connection.writable:
            return None
        return broker

    def _leader_by_template(
        self, queue: PartitionQueue, template: ProduceTemplate
    ) -> tuple[TopicMetadata, int] | None:
        """The leader of a template's partition, and the metadata that name it. None if there is no leader, or
        if the topic was deleted and created again."""
        metadata = self._network.metadata
        topic, leader = metadata.topics.get(queue.topic), metadata.leader(queue.topic, queue.index)
        if topic is None or leader is None or topic.topic_id != template.topic_id:
            return None
        return topic, leader[0]

    def call_finished(self) -> None:
        """Call the waiters of all settled batches."""
        ledger = self._accumulator.ledger
        while ledger.finished:
            with self._lock:
                waiters, ledger.finished = ledger.finished, []
            self._is_calling = True
            try:
                for waiter in waiters:
                    waiter()
            finally:
                self._is_calling = False

    def _arm(self, at: float, now: float) -> None:
        """Make a pass at a time. If one is due earlier, that pass will set the timer again."""
        if at >= self._timer_at:
            return
        self._disarm()
        # uvloop counts in milliseconds and rounds; a pass that comes too early would find nothing due.
        delay = math.ceil(max(at - now, 0.0) * 1000) / 1000
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(delay, self._timer_rang)

    def end(self) -> None:
        """Make no more passes. The background tasks are closed already."""
        self._disarm()
        self.call_finished()

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
        """True if `node` is connected and takes one more request. If it is not connected, or its connection
        is full, starts a task that waits until it is ready and then makes a pass."""
        broker = self._brokers.get(node)
        if broker is None:
            broker = self._brokers[node] = _Broker(node)
        if broker.is_busy or broker.in_flight >= self._settings.max_in_flight:
            return False
        connection = self._network.open_connection(node)
        if connection is not None and connection.writable:
            if connection is not broker.connection:
                broker.connection = connection
                broker.takes_templates = connection.takes(ApiKey.PRODUCE, TEMPLATE_VERSION)
            return True
        if time.monotonic() < broker.not_before:
            self._next_try_at = min(self._next_try_at, broker.not_before)
        else:
            broker.is_busy = True
            self._background.start(f"connect to {node}", self._make_ready(broker))
        return False

    async def _make_ready(self, broker: _Broker) -> None:
        """Connect, or wait until the connection takes more requests; then make a pass."""
        try:
            connection = await self._network.connection(broker.node_id)
            await connection.drained()
            broker.failures = 0
        except ClientError as error:
            self._unreachable(broker, error)
        finally:
            broker.is_busy = False
        self.wake()

    def _unreachable(self, broker: _Broker, error: ClientError) -> None:
        broker.failures += 1
        pause = self._settings.backoff.pause(broker.failures, random.random())
        broker.not_before = time.monotonic() + pause
        with self._lock:
            heads = self._accumulator.schedule.ready_heads(broker.node_id, self._network.metadata.leader)
            for batch in heads:
                batch.last_error = error
            if not error.retriable:
                self._settling.fail_queues([batch.in_queue for batch in heads], error)
        self._network.request_refresh()

    def _send(self, broker: _Broker, batches: list[Batch]) -> None:
        connection = broker.connection
        assert connection is not None
        settings = self._settings
        try:
            if len(batches) == 1 and settings.acks and self._send_by_template(broker, connection, batches[0]):
                return
            call = call_for(batches, self._network.metadata)
            version = connection.version(ApiKey.PRODUCE, call.max_version)
            check_version(version, settings.codec, connection.address)
            request = call.request(settings)
            if settings.acks == 0:
                connection.send_without_answer(request, version)
                self._written(broker, batches)
                return
            connection.send_to(
                _AnswerWaiter(self, broker, call, version, connection.address), request, version
            )
        except Exception as error:
            self._could_not_send(broker, batches, error)

    def _could_not_send(self, broker: _Broker, batches: list[Batch], error: Exception) -> None:
        if not isinstance(error, ClientError):
            self._logger.exception("a Produce request could not be encoded or written")
            error = ClientError(f"a Produce request could not be encoded or written: {error!r}")
        self.failed(broker, batches, error)

    def _begun(self, broker: _Broker) -> None:
        """Count a request that is under way. Under the lock."""
        broker.in_flight += 1
        self._in_flight += 1

    def _ended(self, broker: _Broker) -> None:
        """Count a request that was answered, or never will be. Under the lock."""
        broker.in_flight -= 1
        self._in_flight -= 1

    def _send_by_template(self, broker: _Broker, connection: BrokerConnection, batch: Batch) -> bool:
        """Send a small batch by the template of its partition, which is made if there is none. Returns False,
        and does nothing, if the batch is too large, or the broker or the topic cannot have a template."""
        data = batch.encode(self._settings.codec, self._settings.level)
        topic = self._network.metadata.topics.get(batch.topic)
        if not broker.takes_templates or len(data) > MOST_TEMPLATE_BYTES:
            return False
        if topic is None or topic.topic_id == ZERO_TOPIC_ID:
            return False
        queue = batch.in_queue
        template = queue.template
        if template is None or template.topic_id != topic.topic_id:
            template = ProduceTemplate(topic.topic_id, queue.index, self._network.client_id, self._settings)
            queue.template = template
        if self.thread_loop is not None:
            connection.open_direct_socket()
        connection.send_prepared(
            _TemplateWaiter(self, broker, template, batch, connection.address), template, data
        )
        return True

    def _written(self, broker: _Broker, batches: list[Batch]) -> None:
        """With acks=0 the broker does not answer: a batch counts as written once it was sent."""
        with self._lock:
            self._ended(broker)
            for batch in batches:
                self._settling.written(batch, Outcome())
        self.wake()

    def failed(self, broker: _Broker, batches: list[Batch], error: ClientError) -> None:
        """A request will never be answered: its connection ended, or it could not be sent."""
        now = time.monotonic()
        self._logger.debug("no answer to %d batches: %s", len(batches), error)
        with self._lock:
            self._ended(broker)
            for batch in batches:
                self._settling.lost(batch, error, now, chance=random.random())
        if not self._background.is_closed:
            self._network.request_refresh()
        self.wake()

    def written(self, broker: _Broker, batch: Batch, outcome: Outcome) -> None:
        """The answer to a request made from a template said that the batch is written."""
        schedule = self._accumulator.schedule
        with self._lock:
            self._ended(broker)
            try:
                self._settling.written(batch, outcome)
            except Exception as error:
                self._spoiled([batch], "a broker", error)
        if schedule.has_ready or schedule.next_due() < self._timer_at:
            self.pump()
        else:
            self.call_finished()

    def answered(
        self,
        broker: _Broker,
        call: ProduceCall,
        version: int,
        address: BrokerAddress,
        response: ProduceResponse,
    ) -> None:
        """A broker answered: settle the batches or send them again, and send what could not be sent
        before."""
        now = time.monotonic()
        schedule = self._accumulator.schedule
        unnamed = dict.fromkeys(call.batches)
        is_stale = False
        with self._lock:
            self._ended(broker)
            try:
                learn = self._network.metadata.learn_leader
                for batch, answer, has_moved, stale in call.answers(response, version, learn):
                    del unnamed[batch]
                    is_stale = is_stale or stale
                    self._settling.answered(
                        batch, answer, address, now, chance=random.random(), moved=has_moved
                    )
                for batch in unnamed:
                    missing = ConnectionFailed(
                        f"the answer of {address} does not name {batch.topic}-{batch.partition}"
                    )
                    self._settling.lost(batch, missing, now, chance=random.random())
            except Exception as error:
                self._spoiled(call.batches, address, error)
        if is_stale:
            self._network.request_refresh()
        if schedule.has_ready or schedule.next_due() < self._timer_at:
            self.pump()
        else:
            self.call_finished()

    def _spoiled(self, batches: Iterable[Batch], address: object, error: Exception) -> None:
        """Handling an answer raised, which is a bug of ours: fail its batches, so that nobody waits for them.
        Under the lock."""
        self._logger.exception("handling the answer of %s to a Produce request failed", address)
        failure = ClientError(
            f"handling the answer of {address} to a Produce request failed: {error!r}",
            advice="The records may have been written. This is a bug in Klamm; the log has the traceback",
        )
        self._settling.spoiled(batches, failure, time.monotonic())
