"""`klamm.aio.Producer`: sends records from coroutines. `klamm.Producer` is the same for plain threads."""

from __future__ import annotations

import asyncio
import ssl
import sys
from asyncio import _get_running_loop
from collections.abc import Generator
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Unpack

from klamm.client.arguments import TimeLike, as_name, as_timeout
from klamm.client.async_face import AsyncFace
from klamm.client.errors import ClientError, ClientMisused
from klamm.client.producer.arguments import BytesLike, HeadersGiven
from klamm.client.producer.delivery import BatchDelivery, SentRange
from klamm.client.producer.delivery import RangesDelivery as BaseRangesDelivery
from klamm.client.producer.engine import Engine, Wakeable
from klamm.client.producer.partitioners import Partitioner
from klamm.client.producer.settings import ProducerOptions, producer_config
from klamm.client.results import SentRecord
from klamm.config.client_config import Bootstrap, ConfigGiven

if TYPE_CHECKING:
    import pyarrow

    from klamm.client.producer.columns import ColumnFeed

_COLUMNS = "klamm.client.producer.columns"


class Delivery(BatchDelivery):
    """A record on its way: `sent = await producer.send(...)`, or ask it later."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, SentRecord]:
        outcome = self._outcome()
        if outcome is None:
            waiter = Wakeable(asyncio.get_running_loop())
            self._add_waiter(waiter)
            try:
                yield from waiter.future
            except BaseException:  # cancelled, by `wait_for` perhaps
                self._drop_waiter(waiter)
                raise
            outcome = self._outcome()
            assert outcome is not None
        return self._sent(outcome)

    def result(self, timeout: float | None = None) -> SentRecord:
        """Where the record went. Raises its error, and ClientMisused while it is on its way: await it."""
        outcome = self._outcome()
        if outcome is None:
            raise not_done()
        return self._sent(outcome)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """The error that the record ended in, if it did. Raises ClientMisused while it is on its way."""
        outcome = self._outcome()
        if outcome is None:
            raise not_done()
        return self._error(outcome)


class RangesDelivery(BaseRangesDelivery):
    """Many records on their way: `ranges = await producer.send_arrow(...)`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[SentRange]]:
        if not self.done():
            waiter = Wakeable(asyncio.get_running_loop())
            waiting = self._add_waiter(waiter)
            try:
                yield from waiter.future
            except BaseException:
                waiting.drop()
                raise
        return self._sent()

    def result(self, timeout: float | None = None) -> list[SentRange]:
        """Where the records went. Raises their error, and ClientMisused while they are on their way."""
        if not self.done():
            raise not_done()
        return self._sent()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """The error that the records ended in, if they did. Raises ClientMisused on their way."""
        if not self.done():
            raise not_done()
        return self._error()


def not_done() -> ClientMisused:
    return ClientMisused("the delivery is not done yet", advice="Await it, or ask `done()` first")


def columns_are_loaded() -> bool:
    """True if pyarrow and numba are loaded, so that `send_arrow` need not load them in a thread. Loading
    takes seconds; the first time on a machine longer, because our kernels are compiled."""
    return hasattr(sys.modules.get(_COLUMNS), "ColumnFeed")


def column_feed(
    batch: pyarrow.RecordBatch | pyarrow.Table,
    topic: str,
    columns: dict[str, str | None],
    engine: Engine[Any],
) -> ColumnFeed:
    """Makes the feed for the rows of a batch. Not to be called on the loop before `columns_are_loaded`."""
    from klamm.client.producer.columns import ColumnFeed, ColumnNames

    return ColumnFeed(batch, ColumnNames(**columns), engine.settings, engine.partitioner, topic)


class Producer(AsyncFace):
    """Sends records to topics.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list); `config` is a mapping or a file
    with Kafka's names; options are in docs/CLIENT_CONFIGURATION.md. `partitioner` is "murmur2", "crc32" or a
    function of topic, key and number of partitions that returns a partition, or None to leave it to the
    producer. `ssl_context` replaces the ssl options.
    """

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
        # All calls are on one loop, so nothing needs a lock. An RLock is the cheapest context manager.
        self._engine = Engine(settings, Delivery, lock=RLock(), partitioner=chooser, ssl_context=ssl_context)
        self._guard = self._engine._guard
        self._accumulator = self._engine.accumulator
        self._append = self._accumulator.append

    # ---- life

    async def start(self) -> None:
        """Start. `async with` and the first call do it, too. No connection is made before that."""
        self._guard.check_on_loop()
        await self._engine.start()

    async def close(self, timeout: float | None = None) -> None:
        """Send all records, and close all connections. Records that are not acknowledged within `timeout`
        seconds fail with ClientClosed; without one, every record gets its `delivery_timeout_ms`.

        Idempotent; every other call raises ClientClosed afterwards.
        """
        seconds = as_timeout(timeout)
        if not self._guard.unusable:
            self._guard.check_on_loop()
        await self._engine.close(seconds)

    def counters(self) -> dict[str, float]:
        """The counters of this client so far, by name."""
        self._guard.check_not_forked()
        return self._engine.counters()

    # ---- sending

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

        Never waits: when `buffer_memory` is used up it raises BufferFull, and `await drain()` waits for room.
        """
        guard = self._guard
        # Before the record is taken: a record for which `send` raises must not be sent.
        loop = guard.loop
        if guard.unusable or loop is None or _get_running_loop() is not loop:
            guard.check_on_loop()
        delivery = self._append(topic, value, key, headers, partition, timestamp)
        if self._accumulator.wake_wanted:
            guard.started = True
            self._engine.sender.wake_or_pump()
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
        written. No Python object is made per row. The rows are queued as room allows; `await drain()` waits
        until all are queued. Records sent before that may come before some of the rows.

        Raises ClientMisused for columns that cannot be sent, and BufferFull when many calls wait already. The
        first call in a process loads numba in a thread, which takes seconds: then the delivery ends in the
        ClientMisused instead.
        """
        self._guard.check_on_loop()
        engine = self._engine
        columns = {
            "value": value,
            "key": key,
            "headers": headers,
            "timestamp": timestamp,
            "partition": partition,
        }
        make_feed = partial(column_feed, batch, as_name(topic, "topic"), columns, engine)
        delivery = RangesDelivery()
        engine.feed_soon(make_feed() if columns_are_loaded() else make_feed, delivery)
        return delivery

    async def drain(self) -> None:
        """Wait until there is room for a record. Returns at once unless `buffer_memory` is nearly used up.

        Tasks that wait go on in the order in which they came, as many at once as have room for a record
        each: a `send` right after `await drain()` has its room, however many tasks do the same. Room for a
        record is `max_request_size`; with a `buffer_memory` of less than twice that, half of
        `buffer_memory`, or what the largest record needed that was refused. To wait
        for a limited time use `asyncio.timeout`: `asyncio.wait_for` drains in a task of its own, and the room
        may be gone when the caller goes on.
        """
        self._guard.check_on_loop()
        await self._engine.fed()
        await self._engine.drain()
        self._guard.check()

    async def flush(self, timeout: float | None = None) -> None:
        """Send all records without linger time, and wait until each of them succeeded or failed.

        Raises TimedOut when that takes longer than `timeout` seconds; the records are still on their way.
        """
        self._guard.check_on_loop()
        await self._engine.flush(as_timeout(timeout))

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions of a topic, from 0 on. Raises UnknownTopic if the topic does not exist within
        `timeout` seconds (without one, within `max_block_ms`).

        As with a record, a topic that does not exist is created if the broker creates topics automatically.
        """
        self._guard.check_on_loop()
        return await self._engine.partitions_for(as_name(topic, "topic"), as_timeout(timeout))
