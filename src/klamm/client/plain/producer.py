"""`klamm.Producer`: the producer for plain threads. Names, arguments and docstrings are those of
`klamm.aio.Producer`, except that `send` waits for room where the other raises BufferFull.

A record is appended in the caller's thread, under one lock around the cores. The client's thread is woken
when there is something to send, and not again before its next pass: not for every record. If a record is all
there is to send, the caller's thread even writes it to the socket itself.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm.client.arguments import TimeLike, as_name, as_timeout
from klamm.client.errors import BufferFull, ClientError, ClientMisused, TimedOut
from klamm.client.plain.face import PlainFace, documented_by
from klamm.client.plain.runner import acquire_within
from klamm.client.producer.arguments import BytesLike, HeadersGiven
from klamm.client.producer.batches import Outcome
from klamm.client.producer.delivery import BatchDelivery, SentRange
from klamm.client.producer.delivery import RangesDelivery as BaseRangesDelivery
from klamm.client.producer.engine import Engine
from klamm.client.producer.partitioners import Partitioner
from klamm.client.producer.producer import Producer as AsyncProducer
from klamm.client.producer.producer import column_feed
from klamm.client.producer.settings import ProducerOptions, producer_config
from klamm.client.results import SentRecord
from klamm.config.client_config import Bootstrap, ConfigGiven

if TYPE_CHECKING:
    import pyarrow

_thread_marks = threading.local()
"""`is_client` is set on the threads of clients: callbacks run there, and must not wait."""


class Ring:
    """A waiter for a thread, which blocks in `wait` until the waiter is called. A call after the thread gave
    up does nothing."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        if getattr(_thread_marks, "is_client", False):
            raise ClientMisused(
                "a delivery callback waits for another delivery, which only its own thread can complete",
                advice="Callbacks run on the client's thread; hand the work to a thread of your own",
            )
        # Locked until the waiter is called. A lock costs a third of an Event.
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None) -> bool:
        """True if the waiter was called within `timeout` seconds."""
        return acquire_within(self._lock, timeout)


def _refuse_asyncio(callback: Callable[..., object]) -> None:
    """Raise ClientMisused for a callback of `asyncio.wait`, which would wait for ever: the callback is called
    on the client's thread, and that does not wake the loop that waits."""
    if getattr(callback, "__module__", None) == asyncio.tasks.__name__:
        raise ClientMisused(
            "a delivery of klamm.Producer ends on the client's thread, so asyncio.wait cannot wait for it",
            advice="Use klamm.aio.Producer in coroutines, or await asyncio.to_thread(delivery.result)",
        )


class Delivery(BatchDelivery):
    """A record on its way: `producer.send(...).result()`, or ask it later."""

    __slots__ = ()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        _refuse_asyncio(callback)
        super().add_done_callback(callback)

    def result(self, timeout: float | None = None) -> SentRecord:
        """Waits, and returns where the record was written. Raises its error, or TimedOut after `timeout`
        seconds.
        """
        outcome = self._outcome()
        return self._sent(self._wait(timeout) if outcome is None else outcome)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Waits as `result` does, and returns the record's error; None if it was written."""
        outcome = self._outcome()
        return self._error(self._wait(timeout) if outcome is None else outcome)

    def _wait(self, timeout: float | None) -> Outcome:
        seconds = as_timeout(timeout)
        ring = Ring()
        self._add_waiter(ring)
        rang = False
        try:
            rang = ring.wait(seconds)
        finally:
            if not rang:
                self._drop_waiter(ring)
        if not rang:
            batch, _ = self._place()
            raise TimedOut(f"waiting for a record to {batch.topic}", seconds or 0.0, cause=batch.last_error)
        outcome = self._outcome()
        assert outcome is not None
        return outcome


class RangesDelivery(BaseRangesDelivery):
    """Many records on their way: `producer.send_arrow(...).result()`."""

    __slots__ = ()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        _refuse_asyncio(callback)
        super().add_done_callback(callback)

    def result(self, timeout: float | None = None) -> list[SentRange]:
        """Waits, and returns where the records were written. Raises their error, or TimedOut after `timeout`
        seconds."""
        self._wait(timeout)
        return self._sent()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Waits as `result` does, and returns the records' error; None if they were written."""
        self._wait(timeout)
        return self._error()

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        seconds = as_timeout(timeout)
        ring = Ring()
        waiting = self._add_waiter(ring)
        rang = False
        try:
            rang = ring.wait(seconds)
        finally:
            if not rang:
                waiting.drop()
        if not rang:
            raise TimedOut("waiting for records that were sent as columns", seconds or 0.0)


@documented_by(AsyncProducer)
class Producer(PlainFace):
    """Sends records to topics.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list); `config` is a mapping or a file
    with Kafka's names; options are in docs/CLIENT_CONFIGURATION.md. `partitioner` is "murmur2", "crc32" or a
    function of topic, key and number of partitions that returns a partition, or None to leave it to the
    producer. `ssl_context` replaces the ssl options.
    """

    _client: Engine[Delivery]

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        config: ConfigGiven = None,
        partitioner: Partitioner | str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        settings, chooser = producer_config(bootstrap, config, partitioner, options)
        # Reentrant, because a user's partitioner, or a finalizer, may send in a thread that has the lock.
        self._lock = threading.RLock()
        engine = Engine(settings, Delivery, lock=self._lock, partitioner=chooser, ssl_context=ssl_context)
        self._accumulator = engine.accumulator
        self._append = engine.accumulator.append
        self._sender = engine.sender
        super().__init__(engine)
        self._is_sending = False
        """True while a `send` runs; used under the lock. A `send` within it comes from the same thread, in a
        partitioner or a finalizer, and must not send the batch that the outer one is filling."""
        self._sender.thread_loop = self._thread.loop
        self._thread.call_soon(setattr, _thread_marks, "is_client", True)

    def close(self, timeout: float | None = None) -> None:
        self._close(partial(self._client.close, as_timeout(timeout)))

    def send(
        self,
        topic: str,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: HeadersGiven | None = None,
        partition: int | None = None,
        timestamp: TimeLike | None = None,
    ) -> Delivery:
        """Take a record for sending. Returns a delivery, which ends in a SentRecord or a typed error.

        Key and value are bytes or None; `headers` are pairs of a name and bytes, or a mapping; `timestamp` is
        in milliseconds since 1970 or a datetime with a time zone, by default the present. Without `partition`
        the key decides; without a key records stick to one partition per batch.

        When `buffer_memory` is used up it waits for room, for `max_block_ms` at most, and then raises
        BufferFull. In a delivery callback, which must not wait, it raises BufferFull at once.
        """
        if self._guard.unusable:
            self._guard.check()
        try:
            with self._lock:
                is_nested, self._is_sending = self._is_sending, True
                try:
                    delivery = self._append(topic, value, key, headers, partition, timestamp)
                    sender = self._sender
                    if not self._accumulator.wake_wanted or sender.wake_pending:
                        return delivery
                    if not is_nested and not self._thread.is_current() and sender.send_single_here():
                        return delivery
                    sender.wake_pending = True
                finally:
                    self._is_sending = is_nested
        except BufferFull as full:
            return self._send_later(full, topic, value, key, headers, partition, timestamp)
        self._thread.call_soon(self._sender.pump)
        return delivery

    def send_arrow(
        self,
        batch: pyarrow.RecordBatch | pyarrow.Table,
        topic: str,
        value: str | None = "value",
        key: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | None = None,
    ) -> RangesDelivery:
        """Take the rows of a pyarrow RecordBatch or Table for sending. Needs klamm[arrow].

        `value`, `key` and so on name columns: binary or string for values and keys, timestamps or whole
        milliseconds, lists of structs with key and value for headers. Returns a delivery, which ends in a
        list of SentRange(partition, base_offset, records) or a typed error; after an error some rows may be
        written. No Python object is made per row. Waits until all rows are queued.

        Raises ClientMisused for columns that cannot be sent.
        """
        self._guard.check()
        columns = {
            "value": value,
            "key": key,
            "headers": headers,
            "timestamp": timestamp,
            "partition": partition,
        }
        feed = column_feed(batch, as_name(topic, "topic"), columns, self._client)
        delivery = RangesDelivery()
        self._run(self._client.feed(feed, delivery))
        return delivery

    def _send_later(self, full: BufferFull, *record: Any) -> Delivery:
        """Wait for room and then send; raises `full` if there is no room within max.block.ms."""
        deadline = time.monotonic() + self._client.settings.max_block
        while not self._thread.is_current() and self._wait_for_room(deadline - time.monotonic()):
            with suppress(BufferFull), self._lock:  # other threads may have taken the room
                self._guard.check()
                delivery = self._append(*record)
                self._sender.wake_pending = True
                self._thread.call_soon(self._sender.pump)
                return delivery
        raise full

    def _wait_for_room(self, seconds: float) -> bool:
        ring = Ring()
        with self._lock:
            if self._client.has_room():
                return seconds > 0
            self._client.make_room(ring)
        self._thread.call_soon(self._sender.pump)
        try:
            return ring.wait(seconds)
        finally:
            with self._lock:
                self._accumulator.ledger.drop_room_waiter(ring)

    def drain(self) -> None:
        self._guard.check()
        if not self._client.has_room():
            self._run(self._client.drain())
            self._guard.check()

    def flush(self, timeout: float | None = None) -> None:
        self._run(self._client.flush(as_timeout(timeout)))

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        return self._run(self._client.partitions_for(as_name(topic, "topic"), as_timeout(timeout)))
