"""Walks through topics: pages and searches, in both orders, over gaps, and on from where another stopped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import confluent_kafka
import pytest

import klamm
from klamm.client.admin.admin import Admin
from klamm.client.plain.producer import Producer
from klamm.client.results import TopicPartition
from klamm.operating.records.cursors import cursor_text, parse_cursor
from klamm.operating.records.filters import parse_filter
from klamm.operating.records.matching import Matcher
from klamm.operating.records.rows import Row, row_maker
from klamm.operating.records.spans import Span
from klamm.operating.records.walking import Order, Step, read_record, walk
from klamm.testing import Broker
from tests.operating.records.reading import consumers, make_topic, new_topic, send, spans
from tests.waiting import PATIENCE_S, wait_until

BASE = 1_700_000_000_000
Place = tuple[int, int]


def steps(
    bootstrap: str,
    topic: str,
    spans_: Mapping[int, Span],
    order: Order,
    cursor: str = "",
    text: str = "",
    limit: int = 50,
) -> list[Step]:
    term = parse_filter(text)
    return list(
        walk(
            consumers(bootstrap),
            topic,
            spans_,
            row_maker(),
            order=order,
            positions=parse_cursor(cursor),
            passes=None if term is None else Matcher(term),
            limit=limit,
        )
    )


def all_rows(
    bootstrap: str, topic: str, spans_: Mapping[int, Span], order: Order, text: str = "", limit: int = 50
) -> list[Row]:
    """All pages, each by a walk of its own that goes on where the one before stopped."""
    rows: list[Row] = []
    cursor = ""
    for _ in range(1_000):
        page = steps(bootstrap, topic, spans_, order, cursor, text, limit)
        found = [row for step in page for row in step.rows]
        assert len(found) <= limit
        rows += found
        if page[-1].is_end:
            return rows
        assert len(found) == limit
        cursor = cursor_text(page[-1].positions)
    raise AssertionError("the walk has no end")


@pytest.fixture(scope="module")
def topic(klamm_bootstrap: str) -> str:
    """400 records in five partitions with times that ascend; the last partition is empty, one is short."""
    chance = random.Random(7)
    name = new_topic("walked")
    with Producer(klamm_bootstrap) as producer:
        with klamm.Admin(klamm_bootstrap) as admin:
            admin.create_topic(name, partitions=5)
        for number in range(400):
            partition = 3 if number % 97 == 0 else chance.randrange(3)
            value = b'{"n": %d, "city": "%s"}' % (number, b"Bern" if number % 40 == 7 else b"Basel")
            producer.send(name, value, b"k", partition=partition, timestamp=BASE + number)
    return name


@pytest.mark.parametrize("limit", [3, 50, 1_000])
@pytest.mark.parametrize("order", list(Order))
async def test_pages_have_all_records_in_order(
    klamm_bootstrap: str, topic: str, order: Order, limit: int
) -> None:
    rows = all_rows(klamm_bootstrap, topic, await spans(klamm_bootstrap, topic), order, limit=max(limit, 40))
    times = [row.timestamp - BASE for row in rows]
    assert times == (list(range(399, -1, -1)) if order is Order.NEWEST else list(range(400)))
    few = steps(klamm_bootstrap, topic, await spans(klamm_bootstrap, topic), order, limit=limit)
    assert [row.timestamp - BASE for step in few for row in step.rows] == times[:limit]
    assert (few[-1].total, few[-1].passed, few[-1].is_end) == (400, min(limit, 400), limit == 1_000)


@pytest.mark.parametrize("limit", [4, 50])
@pytest.mark.parametrize("order", list(Order))
async def test_searches_find_all_matches(klamm_bootstrap: str, topic: str, order: Order, limit: int) -> None:
    found = all_rows(
        klamm_bootstrap, topic, await spans(klamm_bootstrap, topic), order, 'city = "Bern"', limit=limit
    )
    numbers = [row.timestamp - BASE for row in found]
    assert sorted(numbers) == [number for number in range(400) if number % 40 == 7]
    for partition in range(5):
        offsets = [row.offset for row in found if row.partition == partition]
        assert offsets == sorted(offsets, reverse=order is Order.NEWEST)
    last = steps(klamm_bootstrap, topic, await spans(klamm_bootstrap, topic), order, text="Zug")[-1]
    assert (last.scanned, last.passed, last.total, last.is_end) == (400, 400, 400, True)


async def test_parts_of_a_topic(klamm_bootstrap: str, topic: str) -> None:
    last_two = await spans(klamm_bootstrap, topic, "-2")
    assert len(all_rows(klamm_bootstrap, topic, last_two, Order.NEWEST)) == 8
    from_time = await spans(klamm_bootstrap, topic, f"@{BASE + 390}")
    times = [row.timestamp - BASE for row in all_rows(klamm_bootstrap, topic, from_time, Order.OLDEST)]
    assert times == list(range(390, 400))
    one = {3: Span(1, 3)}
    assert [row.offset for row in all_rows(klamm_bootstrap, topic, one, Order.NEWEST)] == [2, 1]
    assert all_rows(klamm_bootstrap, topic, {0: Span(5, 5)}, Order.NEWEST) == []
    assert all_rows(klamm_bootstrap, topic, {}, Order.OLDEST) == []


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[bytes, int]]]:
    """A topic whose first 600 records are gone but for three; and where its last values are."""
    quick = {"log.cleaner.backoff.ms": 20, "log.cleaner.threads": 1}
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
    with Broker(quick) as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("gaps", partitions=1, configs=configs)
        with klamm.Producer(broker.bootstrap) as producer, klamm.Consumer(broker.bootstrap) as consumer:
            producer.send("gaps", b"first", b"a")
            sent = [producer.send("gaps", b"%d" % number, b"%d" % (number % 2)) for number in range(600)]
            expected = {b"first": 0, b"598": sent[598].result().offset, b"599": sent[599].result().offset}

            def is_compacted() -> bool:
                last = producer.send("gaps", b"last", b"last").result()
                expected[b"last"] = last.offset
                consumer.assign(("gaps", 0))
                consumer.seek(("gaps", 0), 0)
                count = 0
                while consumer.position(("gaps", 0)) <= last.offset:
                    count += len(consumer.poll(timeout=1.0))
                return count < 20

            wait_until(is_compacted, "the log is compacted")
        yield broker.bootstrap, "gaps", expected


@pytest.mark.parametrize("text", ["", "not value = x"])
@pytest.mark.parametrize("order", list(Order))
async def test_gaps(compacted: tuple[str, str, dict[bytes, int]], order: Order, text: str) -> None:
    bootstrap, topic, expected = compacted
    found = await spans(bootstrap, topic)
    for limit in (2, 50):
        rows = all_rows(bootstrap, topic, found, order, text, limit=limit)
        offsets = [row.offset for row in rows]
        assert offsets == sorted(offsets, reverse=order is Order.NEWEST) and len(offsets) < 30
        assert set(expected.values()) <= set(offsets)
    partition = TopicPartition(topic, 0)
    read = read_record(consumers(bootstrap), partition, expected[b"598"])
    assert read is not None and read.value == b"598"
    assert read_record(consumers(bootstrap), partition, 300) is None


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "value ~ v"])
@pytest.mark.parametrize("order", list(Order))
async def test_transactions_of_apache_kafka(apache_kafka: str, order: Order, text: str) -> None:
    """Each leaves a marker, and those that are aborted have no records for some readers."""
    name = new_topic("transactions")
    await make_topic(apache_kafka, name)
    producer = confluent_kafka.Producer({"bootstrap.servers": apache_kafka, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(name, b"v%d" % number, partition=0, timestamp=BASE + number)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    found = await spans(apache_kafka, name)
    assert found == {0: Span(0, 12)}
    offsets = [row.offset for row in all_rows(apache_kafka, name, found, order, text, limit=2)]
    assert offsets == ([10, 8, 6, 4, 2, 0] if order is Order.NEWEST else [0, 2, 4, 6, 8, 10])
    committed = walk(consumers(apache_kafka), name, found, row_maker(), order=order, read_committed=True)
    assert sorted(row.offset for step in committed for row in step.rows) == [0, 4, 8]
    partition = TopicPartition(name, 0)
    read = read_record(consumers(apache_kafka), partition, 4)
    assert read is not None and read.value == b"v2"
    assert read_record(consumers(apache_kafka), partition, 5) is None


async def test_records_whose_times_do_not_ascend(klamm_bootstrap: str) -> None:
    name = new_topic("unordered")
    await make_topic(klamm_bootstrap, name, partitions=2)
    send(
        klamm_bootstrap, name, {0: [(BASE + 9, b"a"), (BASE, b"b"), (BASE + 5, b"c")], 1: [(BASE + 4, b"d")]}
    )
    found = await spans(klamm_bootstrap, name)
    for limit in (1, 2, 50):
        newest = all_rows(klamm_bootstrap, name, found, Order.NEWEST, limit=limit)
        assert [row.value.text for row in newest if row.value] == ["c", "d", "b", "a"]


async def test_a_large_record_and_many_tiny_ones_become_small_rows(klamm_bootstrap: str) -> None:
    name = new_topic("large")
    await make_topic(klamm_bootstrap, name, configs={"max.message.bytes": "12000000"})
    with Producer(
        klamm_bootstrap, max_request_size=12_000_000, linger_ms=50, batch_size=2_000_000
    ) as producer:
        producer.send(name, b"x" * 10_000_000, partition=0)
        producer.flush()
        for number in range(100_000):
            producer.send(name, b"%d" % number, partition=0)
    found = await spans(klamm_bootstrap, name)
    oldest = steps(klamm_bootstrap, name, found, Order.OLDEST, limit=2)[-1].rows
    assert oldest[0].value is not None and oldest[0].value.size == 10_000_000 and oldest[0].value.is_cut
    assert len(oldest[0].value.text) < 1_000
    assert steps(klamm_bootstrap, name, found, Order.NEWEST, limit=1)[-1].rows[0].offset == 100_000
    search = steps(klamm_bootstrap, name, found, Order.NEWEST, text="value = 12345")
    assert [row.offset for step in search for row in step.rows] == [12_346]
    assert len(search) > 10, "a search tells in between how far it is"


async def test_records_that_were_deleted_meanwhile(klamm_bootstrap: str) -> None:
    """A span that begins before the log: the records that are there come."""
    name = new_topic("trimmed")
    await make_topic(klamm_bootstrap, name)
    send(klamm_bootstrap, name, {0: [(BASE + each, b"%d" % each) for each in range(10)]})
    async with Admin(klamm_bootstrap) as admin:
        await admin.delete_records({TopicPartition(name, 0): 6})
    for order in Order:
        rows = all_rows(klamm_bootstrap, name, {0: Span(0, 10)}, order, limit=3)
        assert sorted(row.offset for row in rows) == [6, 7, 8, 9]
