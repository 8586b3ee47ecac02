"""Columns on their way through the cores: slices, parts, room, and who is told."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from functools import partial
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from klamm.aio import Producer
from klamm.client.errors import (
    BufferFull,
    ClientError,
    ClientMisused,
    LocalRecordTooLarge,
    RecordTooLarge,
    UnknownTopic,
)
from klamm.client.producer import producer as producer_module
from klamm.client.producer.columns import ColumnFeed, ColumnNames
from klamm.client.producer.delivery import RangesDelivery, SentRange
from klamm.client.producer.partitioners import murmur2_partition
from klamm.client.producer.producer import columns_are_loaded
from klamm.client.producer.settings import ProducerSettings
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.records.reader import iter_records
from tests.client.network.fake_broker import topic_of
from tests.client.producer.cores import NOW_MS, Cores
from tests.client.producer.scripted import TOPIC, ScriptedTopic, answer_with

SHOULD_NOT_TAKE_S = 30.0

NAMES = ColumnNames("value", None, None, None, None)


def table_of(count: int, size: int = 10) -> pa.RecordBatch:
    values = [b"%d".ljust(size) % number for number in range(count)]
    keys = [b"%d" % (number % 7) for number in range(count)]
    return pa.RecordBatch.from_pydict({"value": values, "key": keys})


def feed_of(batch: Any, names: ColumnNames = NAMES, chooser: Any = None, **settings: Any) -> ColumnFeed:
    return ColumnFeed(batch, names, ProducerSettings(**settings), chooser, "t")


def fed(cores: Cores, feed: ColumnFeed) -> RangesDelivery:
    """Everything in batches."""
    delivery = RangesDelivery()
    while (encoded := feed.next_batches(3, [0, 1, 2], NOW_MS)) is not None:
        for records in encoded:
            delivery.feed(
                cores.accumulator.append_encoded(
                    "t",
                    records.partition,
                    records.batch,
                    records.count,
                    records.base_timestamp,
                    records.max_timestamp,
                )
            )
    delivery.end_feed()
    return delivery


def test_rows_are_cut_into_slices_that_fit_the_buffer() -> None:
    feed = feed_of(table_of(1000, 100), buffer_bytes=40_000)
    slices = []
    while (encoded := feed.next_batches(3, [0, 1, 2], NOW_MS)) is not None:
        slices.append(sum(batch.count for batch in encoded))
        assert sum(len(batch.batch) for batch in encoded) < 20_000
    assert sum(slices) == 1000 and len(slices) > 5


def counts_of(table: pa.Table, names: ColumnNames = NAMES) -> list[int]:
    """How many rows are encoded at a time."""
    feed = feed_of(table, names)
    counts = []
    while (encoded := feed.next_batches(1, [0], NOW_MS)) is not None:
        counts.append(sum(batch.count for batch in encoded))
    return counts


def test_large_pieces_of_a_table_are_not_put_together_but_for_partitions() -> None:
    pieces = [table_of(600, 1000), table_of(700, 1000)]
    table = pa.Table.from_batches(pieces)
    assert counts_of(table) == [600, 700]
    assert counts_of(table, NAMES._replace(key="key")) == [1300], "batches of partitions shall be large"
    assert counts_of(table.slice(100)) == [500, 700]


def test_small_pieces_of_a_table_are_put_together() -> None:
    assert counts_of(pa.Table.from_batches([table_of(100), table_of(50), table_of(7)])) == [157]


def test_rows_come_back_in_ranges() -> None:
    cores = Cores(3, batch_bytes=1000)
    delivery = fed(cores, feed_of(table_of(200), column_batch_bytes=1000))
    told: list[object] = []
    delivery.add_done_callback(told.append)
    ends = [0, 0, 0]
    records = []
    while batches := cores.drain():
        for batch in batches:
            records += [(batch.partition, record.value) for record in iter_records(batch.data or b"")]
            cores.answer(batch, base_offset=ends[batch.partition])
            ends[batch.partition] += batch.count
            assert not told
    cores.call_finished()
    assert told == [delivery] and delivery.done()
    ranges = delivery._sent()
    assert sum(one.records for one in ranges) == 200 == len(records)
    assert {one.partition for one in ranges} == {0, 1, 2}
    assert isinstance(ranges[0], SentRange) and ranges[0].base_offset == 0


def test_a_split_batch_is_waited_for_part_by_part() -> None:
    cores = Cores(3)
    delivery = fed(cores, feed_of(table_of(8)))
    (batch,) = cores.drain()
    told: list[object] = []
    delivery.add_done_callback(told.append)
    cores.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    offset = 10
    while batches := cores.drain():
        cores.call_finished()
        assert not told and not delivery.done()
        cores.answer(batches[0], base_offset=offset)
        offset += batches[0].count
    cores.call_finished()
    assert told == [delivery]
    assert delivery._sent() == [SentRange(0, 10, 4), SentRange(0, 14, 4)]


def test_the_first_error_is_the_error_of_all() -> None:
    cores = Cores(3, batch_bytes=300)
    delivery = fed(cores, feed_of(table_of(30), column_batch_bytes=300))
    first, *others = cores.drain()
    cores.answer(first, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for batch in others + cores.drain_all():
        cores.answer(batch)
    assert delivery.done()
    error = delivery._error()
    assert error is not None and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_partitioner_of_the_users_is_asked_about_every_key() -> None:
    names = ColumnNames("value", "key", None, None, None)
    feed = feed_of(table_of(70), names, lambda topic, key, count: int(key) % count)
    encoded = feed.next_batches(3, [0, 1, 2], NOW_MS)
    assert encoded is not None and sorted(batch.count for batch in encoded) == [20, 20, 30]
    bad = feed_of(table_of(70), names, lambda topic, key, count: 99)
    with pytest.raises(ClientMisused, match="99"):
        bad.next_batches(3, [0, 1, 2], NOW_MS)


def test_keys_choose_as_single_records_do() -> None:
    encoded = feed_of(table_of(7), ColumnNames("value", "key", None, None, None)).next_batches(
        5, range(5), NOW_MS
    )
    expected = {murmur2_partition(b"%d" % number, 5) for number in range(7)}
    assert encoded is not None and {batch.partition for batch in encoded} == expected


@pytest.mark.parametrize(
    ("batch", "names", "what"),
    [
        ([b"1"], NAMES, "neither"),
        (pa.RecordBatch.from_pydict({"value": [1, 2]}), NAMES, "value"),
        (table_of(1), NAMES._replace(key="missing"), "missing"),
        (table_of(1), NAMES._replace(timestamp="key"), "key"),
    ],
    ids=["no-table", "numbers", "no-column", "no-time"],
)
def test_columns_that_cannot_be_sent(batch: Any, names: ColumnNames, what: str) -> None:
    with pytest.raises(ClientMisused, match=what):
        feed_of(batch, names)


def test_a_row_that_is_too_large() -> None:
    feed = feed_of(table_of(3, 2000), max_request_bytes=1000, column_batch_bytes=1000)
    with pytest.raises(LocalRecordTooLarge, match="max_request_size"):
        feed.next_batches(3, [0, 1, 2], NOW_MS)


# ---- the asyncio face, against a scripted broker


async def test_more_rows_than_the_buffer_holds() -> None:
    async with ScriptedTopic(partitions=2) as topic:
        memory = 50_000
        async with Producer(topic.bootstrap, buffer_memory=memory, batch_size=4000) as producer:
            delivery = producer.send_arrow(table_of(5000, 50), TOPIC)
            ranges = await delivery
            assert sum(one.records for one in ranges) == 5000
            assert delivery.result() == ranges and delivery.exception() is None
        assert sorted(topic.values(0) + topic.values(1)) == sorted(table_of(5000, 50)["value"].to_pylist())


async def test_columns_stay_in_order_and_before_what_comes_after_drain() -> None:
    async with ScriptedTopic() as topic, Producer(topic.bootstrap) as producer:
        first = producer.send_arrow(table_of(10), TOPIC)
        second = producer.send_arrow(table_of(5), TOPIC)
        with pytest.raises(ClientMisused, match="Await"):
            first.result()
        await producer.drain()
        last = producer.send(TOPIC, b"last")
        await producer.flush()
        assert [first.result(), second.result()] == [[SentRange(0, 0, 10)], [SentRange(0, 10, 5)]]
        assert last.result().offset == 15


async def test_columns_wait_for_room_after_those_that_wait_already() -> None:
    small = {"buffer_memory": 5000, "max_request_size": 2400, "batch_size": 0}
    async with ScriptedTopic() as topic, Producer(topic.bootstrap, **small) as producer:
        go_on = asyncio.Event()

        def slow(script: ScriptedTopic, request: Any) -> Any:
            async def answer() -> Any:
                await go_on.wait()
                return script.write(request)

            return answer()

        topic.script = [slow]
        await producer.partitions_for(TOPIC)
        producer.send(TOPIC, bytes(1500))
        producer.send(TOPIC, bytes(1500))

        async def send() -> None:
            await producer.drain()
            producer.send(TOPIC, b"drained")

        sent = asyncio.create_task(send())
        await asyncio.sleep(0)
        columns = producer.send_arrow(table_of(2), TOPIC)
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(SHOULD_NOT_TAKE_S):
            await sent
            await columns
            await producer.flush()
        assert topic.values()[2] == b"drained" and len(topic.values()) == 5


async def test_too_many_columns_at_once() -> None:
    async with ScriptedTopic() as topic:
        topic.brokers[0].answers[ApiKey.METADATA] = lambda request, version: topic.brokers[0].metadata()
        producer = Producer(topic.bootstrap, max_block_ms=60_000)
        deliveries = []
        with pytest.raises(BufferFull):
            while True:
                deliveries.append(producer.send_arrow(table_of(1), TOPIC))
        await producer.close(0.1)
        for delivery in deliveries:
            assert delivery.done() and delivery.exception() is not None


async def test_columns_for_a_topic_that_is_not_there() -> None:
    async with ScriptedTopic() as topic:
        topic.brokers[0].answers[ApiKey.METADATA] = lambda request, version: topic.brokers[0].metadata(
            topic_of(TOPIC, [], error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )
        async with Producer(topic.bootstrap, max_block_ms=1_500, retry_backoff_ms=10) as producer:
            with pytest.raises(UnknownTopic):
                await producer.send_arrow(table_of(1), TOPIC)


async def test_columns_that_a_broker_refuses() -> None:
    async with ScriptedTopic() as topic, Producer(topic.bootstrap) as producer:
        topic.script = [answer_with(ErrorCode.MESSAGE_TOO_LARGE)] * 3
        with pytest.raises(RecordTooLarge):
            await producer.send_arrow(table_of(2), TOPIC)


# ---- loading what columns need


async def test_the_first_columns_load_numba_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_went_on = threading.Event()
    threads = set()

    def load_slowly(*arguments: Any) -> ColumnFeed:
        threads.add(threading.current_thread())
        loop_went_on.wait(SHOULD_NOT_TAKE_S)
        return producer_module.column_feed(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(producer_module, "columns_are_loaded", lambda: False)
        patched.setattr(producer_module, "partial", lambda _, *arguments: partial(load_slowly, *arguments))
        async with ScriptedTopic() as topic, Producer(topic.bootstrap) as producer:
            good = producer.send_arrow(table_of(2), TOPIC)
            wrong = producer.send_arrow(table_of(2), TOPIC, value="other")
            asyncio.get_running_loop().call_soon(loop_went_on.set)
            assert [one.records for one in await good] == [2]
            with pytest.raises(ClientMisused, match="other"):
                await wrong
    assert threads and threading.current_thread() not in threads, "the loop stood still meanwhile"


@pytest.mark.parametrize("error", [ImportError("numba needs NumPy 2.1 or less"), MemoryError()], ids=repr)
async def test_columns_that_cannot_be_loaded_say_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> ColumnFeed:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(producer_module, "columns_are_loaded", lambda: False)
        patched.setattr(producer_module, "partial", lambda *_: fail)
        async with ScriptedTopic() as topic, Producer(topic.bootstrap) as producer:
            delivery = producer.send_arrow(table_of(2), TOPIC)
            with pytest.raises(ClientError, match=re.escape(f"could not be queued: {error!r}")):
                await delivery


def test_columns_count_as_loaded_once_their_module_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert columns_are_loaded()
    monkeypatch.setitem(sys.modules, ColumnFeed.__module__, ModuleType("still loading"))
    assert not columns_are_loaded()
    monkeypatch.delitem(sys.modules, ColumnFeed.__module__)
    assert not columns_are_loaded()
