"""Both faces against Klamm itself: what each promises of its own, and a broker that is stopped and started.

What both say alike is in tests/client/behaviour.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import klamm
import klamm.aio
from klamm.client.errors import (
    BufferFull,
    ClientClosed,
    ClientForked,
    ClientMisused,
    TimedOut,
    UnknownTopic,
)
from klamm.client.producer.settings import ProducerOptions
from klamm.records.reader import iter_records
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.abuse.calls import batches_of, fetch
from tests.client.leaks import nothing_leaks
from tests.client.topics import make_topic, unique
from tests.waiting import wait_until

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


def read_values(bootstrap: str, topic: str, partition: int = 0) -> list[bytes | None]:
    """All values of a partition, read over the bare wire."""
    values: list[bytes | None] = []
    with WireConnection(bootstrap) as connection:
        while True:
            data = fetch(connection, topic, len(values), partition=partition)
            batches = list(batches_of(data.records or b""))
            if not batches:
                return values
            values += [record.value for batch in batches for record in iter_records(batch)]


# ---- arguments


def test_a_partitioner_by_name_or_as_a_function(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap, partitions=3)
    for partitioner in ("crc32", "murmur2", lambda topic, key, count: 2):
        with klamm.Producer(broker.bootstrap, partitioner=partitioner) as producer:
            sent = producer.send(topic, b"v", key=b"key").result(LIMIT_S)
    assert sent.partition == 2
    with pytest.raises(klamm.ConfigError, match="murmur2"):
        klamm.Producer(broker.bootstrap, partitioner="murmur3")


def test_acks_and_idempotence_go_together() -> None:
    with pytest.raises(klamm.ConfigError, match="idempotence"):
        klamm.aio.Producer("localhost:1", acks=1, enable_idempotence=True)


# ---- a broker that stops and starts


def test_a_restart_loses_and_doubles_nothing() -> None:
    with Broker() as broker, nothing_leaks(to_ports={int(broker.bootstrap.rpartition(":")[2])}):
        topic = make_topic(broker.bootstrap, partitions=2)
        with klamm.Producer(broker.bootstrap, linger_ms=1, retry_backoff_ms=10) as producer:
            stopping = threading.Event()
            deliveries: list[Any] = []

            def send() -> None:
                while not stopping.is_set():
                    number = len(deliveries)
                    deliveries.append(producer.send(topic, b"%d" % number, partition=number % 2))
                    if number % 50 == 0:
                        stopping.wait(0.001)

            thread = threading.Thread(target=send)
            thread.start()
            for _ in range(3):
                count = len(deliveries)
                broker.restart()
                wait_until(
                    lambda count=count: len(deliveries) > count and deliveries[count].done(),
                    "it goes on after a restart",
                    LIMIT_S,
                )
            stopping.set()
            thread.join()
            producer.flush(LIMIT_S)
            sent = [delivery.result(0) for delivery in deliveries]
        for partition in range(2):
            expected = [b"%d" % number for number in range(len(sent)) if number % 2 == partition]
            assert read_values(broker.bootstrap, topic, partition) == expected
            assert [one.offset for one in sent if one.partition == partition] == list(range(len(expected)))


# ---- topics and partitions that are not there


def test_an_unknown_topic_takes_max_block(broker: Broker) -> None:
    with klamm.Producer(
        broker.bootstrap, max_block_ms=1000, retry_backoff_ms=20, retry_backoff_max_ms=50
    ) as producer:
        started = time.monotonic()
        first, second = producer.send(unique("none"), b"v"), producer.send(unique("none"), b"v")
        assert isinstance(first.exception(LIMIT_S), UnknownTopic)
        assert isinstance(second.exception(LIMIT_S), UnknownTopic)
        assert 0.5 < time.monotonic() - started < LIMIT_S, "the default of max_block_ms is longer"
        with pytest.raises(UnknownTopic):
            producer.partitions_for(unique("none"))


def test_a_partition_that_is_not_there_is_told_soon(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap, partitions=2)
    with klamm.Producer(broker.bootstrap) as producer:
        started = time.monotonic()
        assert isinstance(producer.send(topic, b"v", partition=2).exception(LIMIT_S), UnknownTopic)
        assert time.monotonic() - started < LIMIT_S, "less than max_block_ms"
        assert producer.partitions_for(topic) == [0, 1]


# ---- the plain face


def test_a_full_buffer_makes_send_wait_and_then_say_so(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    options = {"buffer_memory": 20_000, "max_request_size": 5000, "max_block_ms": 200}
    with klamm.Producer(broker.bootstrap, **options) as producer:
        for _ in range(500):
            producer.send(topic, bytes(200))
        producer.flush(LIMIT_S)
        assert producer.counters()["buffer_full"] > 0 and producer.counters()["buffer_bytes"] == 0
    with klamm.Producer("127.0.0.1:1", delivery_timeout_ms=60_000, **options) as lonely:
        started = time.monotonic()
        with pytest.raises(BufferFull):
            for _ in range(500):
                lonely.send(topic, bytes(200))
        assert time.monotonic() - started > 0.15
        lonely.close(0.0)


def test_waiting_in_a_callback_is_an_error_and_no_deadlock(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    told: list[object] = []
    with klamm.Producer(broker.bootstrap) as producer:

        def wait_for_another(done: Any) -> None:
            told.append(done.result(0).offset)
            try:
                producer.send(topic, b"second").result(LIMIT_S)
            except ClientMisused as error:
                told.append(error)

        producer.send(topic, b"first").add_done_callback(wait_for_another)
        producer.flush(LIMIT_S)
        producer.flush(LIMIT_S)
    assert told[0] == 0 and isinstance(told[1], ClientMisused)
    assert read_values(broker.bootstrap, topic) == [b"first", b"second"]


def test_a_partitioner_may_send(broker: Broker) -> None:
    """It is called under the producer's lock, which must not lock itself out."""
    topic, audit = make_topic(broker.bootstrap), make_topic(broker.bootstrap)
    producers: list[Any] = []

    def choose(name: str, key: bytes | None, count: int) -> int:
        if name == topic:
            producers[0].send(audit, b"asked")
        return 0

    with klamm.Producer(broker.bootstrap, partitioner=choose) as producer:
        producers.append(producer)
        producer.partitions_for(topic)
        producer.send(topic, b"v", key=b"k").result(LIMIT_S)
        producer.flush(LIMIT_S)
    assert read_values(broker.bootstrap, audit)


def test_result_has_a_time_of_its_own(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with klamm.Producer(broker.bootstrap, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"v")
        with pytest.raises(TimedOut, match=topic):
            delivery.result(0.05)
        producer.flush(LIMIT_S)
        assert delivery.result(0).offset == 0


def test_close_with_a_time_fails_what_is_left() -> None:
    producer = klamm.Producer("127.0.0.1:1")
    delivery = producer.send("topic", b"v")
    started = time.monotonic()
    producer.close(0.1)
    assert time.monotonic() - started < LIMIT_S, "less than delivery_timeout_ms"
    assert isinstance(delivery.exception(0), ClientClosed)
    with pytest.raises(ClientClosed):
        producer.send("topic", b"v")


def test_whoever_waits_when_the_producer_is_closed_is_told() -> None:
    producer = klamm.Producer("127.0.0.1:1", buffer_memory=10_000, max_request_size=2000)
    errors: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                producer.send("topic", bytes(500))
        except klamm.ClientError as error:
            errors.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    wait_until(lambda: producer.counters()["buffer_full"], "the buffer is full", LIMIT_S)
    producer.close(0.0)
    thread.join(LIMIT_S)
    assert not thread.is_alive() and isinstance(errors[0], ClientClosed)


def test_a_forked_child_is_refused_and_the_parent_goes_on(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"before").result(LIMIT_S)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                producer.send(topic, b"never")
            except ClientForked:
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.send(topic, b"after").result(LIMIT_S).offset == 1


# ---- the asyncio face


async def test_nothing_need_be_started(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    producer = klamm.aio.Producer(broker.bootstrap)
    assert (await producer.send(topic, b"v")).offset == 0
    await producer.close()
    with pytest.raises(ClientClosed):
        producer.send(topic, b"v")


async def test_a_cancelled_waiter_takes_nothing_with_it(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    async with klamm.aio.Producer(broker.bootstrap, linger_ms=50) as producer:
        first, second = producer.send(topic, b"1"), producer.send(topic, b"2")

        async def wait() -> Any:
            return await first

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        assert (await second).offset == 1
        assert task.cancelled() and first.result().offset == 0
        assert (await first).offset == 0, "and again"


async def test_many_tasks_wait_for_their_own_records(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    async with klamm.aio.Producer(broker.bootstrap) as producer:

        async def one(number: int) -> int:
            return int((await producer.send(topic, b"%d" % number)).offset)

        offsets = await asyncio.gather(*(one(number) for number in range(500)))
    assert offsets == list(range(500))
    assert read_values(broker.bootstrap, topic) == [b"%d" % number for number in range(500)]


async def test_a_record_alone_goes_at_once_and_a_burst_goes_together(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    async with klamm.aio.Producer(broker.bootstrap) as producer:
        await producer.send(topic, b"warm")
        before = producer.counters()["batches_sent"]
        deliveries = [producer.send(topic, b"%d" % number) for number in range(300)]
        await producer.flush()
        assert producer.counters()["batches_sent"] - before <= 3
        assert [one.result().offset for one in deliveries] == list(range(1, 301))


# ---- what `send` refuses is not sent later


async def test_a_record_that_found_no_room_is_not_sent_later(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    options: ProducerOptions = {"buffer_memory": 20_000, "batch_size": 5000}
    async with klamm.aio.Producer(broker.bootstrap, **options) as producer:
        taken: list[bytes] = []
        with pytest.raises(BufferFull):
            while True:
                value = b"%d" % len(taken) + bytes(1000)
                producer.send(topic, value)
                taken.append(value)
        await producer.drain()
        last = b"last" + bytes(1000)
        await producer.send(topic, last)
        await producer.flush()
        assert producer.counters()["records_sent"] == len(taken) + 1
    assert read_values(broker.bootstrap, topic) == [*taken, last]


def test_a_record_that_came_from_outside_of_the_loop_is_not_sent_later(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)

    async def send(producer: klamm.aio.Producer, value: bytes) -> None:
        await producer.send(topic, value)

    async def use() -> None:
        producer = klamm.aio.Producer(broker.bootstrap)

        def misuse() -> None:
            with pytest.raises(ClientMisused, match="outside of an event loop"):
                producer.send(topic, b"from a thread")
            with pytest.raises(ClientMisused, match="another event loop"):
                asyncio.run(send(producer, b"from another loop"))

        async with producer:
            await asyncio.to_thread(misuse)
            await send(producer, b"from the loop")

    asyncio.run(use())
    assert read_values(broker.bootstrap, topic) == [b"from the loop"]
