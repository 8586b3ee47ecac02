from __future__ import annotations

import asyncio
import re
import threading
import time
from random import Random
from typing import Any

import pytest

import klamm
from klamm import aio
from klamm.client.results import TopicPartition
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.records.builder import build_batch
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.abuse.calls import batch_of, create_topic, produce, read_all
from tests.client.faces import Face
from tests.client.reading import PATIENCE_S, collect, poll_until, values
from tests.client.topics import make_topic, unique
from tests.moments import MIDNIGHT_MS
from tests.waiting import wait_until

MOMENT_MS = MIDNIGHT_MS


def fill(
    wire: WireConnection, topic: str, count: int, *, partition: int = 0, per_batch: int = 10
) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    for first in range(0, count, per_batch):
        produce(wire, topic, batch_of(*sent[first : first + per_batch]), partition=partition)
    return sent


# ---- polls that hardly wait


@pytest.mark.parametrize("timeout", [0, 1e-9, 0.001])
def test_polls_that_hardly_wait_let_the_loop_go_on(
    broker: Broker, wire: WireConnection, timeout: float
) -> None:
    topic = make_topic(broker.bootstrap)
    sent = fill(wire, topic, 5)

    async def read() -> list[klamm.Record]:
        async with aio.Consumer(broker.bootstrap, start="earliest") as consumer:
            consumer.assign([(topic, 0)])
            give_up_at = time.monotonic() + PATIENCE_S
            records: list[klamm.Record] = []
            while not records and time.monotonic() < give_up_at:
                records = await consumer.poll(timeout)
            return records

    assert values(asyncio.run(read())) == sent


# ---- what records look like


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_records_of_every_codec(face: Face, broker: Broker, wire: WireConnection, codec: Codec) -> None:
    topic = make_topic(broker.bootstrap)
    written = [
        StoredRecord(0, MOMENT_MS, b"key", b"value", (("name", b"x"), ("empty", b""), ("none", None))),
        StoredRecord(1, MOMENT_MS + 1, None, b"only a value"),
        StoredRecord(2, MOMENT_MS + 2, b"only a key", None),
        StoredRecord(3, MOMENT_MS + 3, b"", b""),
        StoredRecord(
            4, MOMENT_MS + 4, "ключ".encode(), bytes(range(256)) * 40, (("имя", b"1"), ("имя", b"2"))
        ),
    ]
    produce(wire, topic, build_batch(written, codec=codec))
    with face.consumer(broker.bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        read = collect(consumer, 5)
        consumer.seek((topic, 0), 0)
        columns = consumer.poll_arrow(timeout=PATIENCE_S)
        consumer.seek((topic, 0), 0)
        iterated = [record for _, record in zip(range(5), consumer, strict=False)]
    assert [tuple(record)[2:7] for record in read] == [tuple(record) for record in written]
    assert iterated == read
    assert {(record.topic, record.partition, record.timestamp_type) for record in read} == {
        (topic, 0, "CreateTime")
    }
    assert columns.column("value").to_pylist() == values(read)
    assert columns.column("key").to_pylist() == [record.key for record in read]


def test_a_compacted_log_has_gaps(face: Face, broker: Broker, wire: WireConnection) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": 1}
    topic = make_topic(broker.bootstrap, configs=configs)
    for number in range(30):
        produce(wire, topic, batch_of(b"%d" % number, key=b"key-%d" % (number % 3)))

    def is_compacted() -> bool:
        produce(wire, topic, batch_of(b"last", key=b"last"))  # a new segment, so that the others are cleaned
        return len(read_all(wire, topic)) < 20

    wait_until(is_compacted, "the log is compacted")
    with face.consumer(broker.bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        records = poll_until(consumer, lambda: consumer.lag()[topic, 0] == 0, "the end is reached")
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets) and len(offsets) < offsets[-1] + 1, "there are gaps"
        assert {record.value for record in records} >= {b"27", b"28", b"29"}
        consumer.seek((topic, 0), 1)
        assert consumer.poll(timeout=PATIENCE_S)[0].offset > 1, "what is there no more is passed over"


# ---- moving around


def test_seeks_while_fetches_are_under_way(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap, partitions=2)
    for partition in range(2):
        fill(wire, topic, 500, partition=partition, per_batch=7)
    random = Random(5)
    with face.consumer(broker.bootstrap, start="earliest", max_partition_fetch_bytes=1500) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        expected = {0: 0, 1: 0}
        for turn in range(150):
            if turn % 2:
                partition = random.randrange(2)
                expected[partition] = random.randrange(500)
                consumer.seek((topic, partition), expected[partition])
            for record in consumer.poll(
                timeout=random.choice([0, 0.01, 1]), max_records=random.randrange(1, 60)
            ):
                assert record.offset == expected[record.partition], f"turn {turn}"
                assert record.value == b"%d" % record.offset
                expected[record.partition] += 1


def test_a_seek_does_not_wait_for_the_long_poll(face: Face, broker: Broker, wire: WireConnection) -> None:
    """Fetches may wait for an hour; a seek is served at once all the same."""
    topic = make_topic(broker.bootstrap)
    fill(wire, topic, 3)
    with face.consumer(
        broker.bootstrap, start="earliest", fetch_max_wait_ms=3_600_000, request_timeout_ms=30_000
    ) as consumer:
        consumer.assign([(topic, 0)])
        collect(consumer, 3)
        for offset in (1, 2, 0):
            assert consumer.poll(timeout=0.2) == []
            consumer.seek((topic, 0), offset)
            assert consumer.poll(timeout=PATIENCE_S)[0].offset == offset


def test_records_deleted_while_others_are_read(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap)
    fill(wire, topic, 100)
    with face.consumer(broker.bootstrap, start="earliest", max_partition_fetch_bytes=300) as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll(timeout=PATIENCE_S, max_records=5)
        assert [record.offset for record in first] == [0, 1, 2, 3, 4]
        deletion = DeleteRecordsPartition(partition_index=0, offset=80)
        wire.call(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=topic, partitions=[deletion])], timeout_ms=10_000
            )
        )
        records = poll_until(consumer, lambda: consumer.position((topic, 0)) == 100, "the end is reached")
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), "nothing twice, nothing backwards"
        assert offsets[-20:] == list(range(80, 100)), "everything that is left comes"


# ---- topics that come, go and grow


def recreate(wire: WireConnection, topic: str, partitions: int = 1) -> None:
    wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000))
    create_topic(wire, topic, partitions=partitions)


def test_a_topic_is_made_anew_under_the_consumer(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap)
    fill(wire, topic, 20)
    # By its requests for metadata, the consumer itself could make the topic anew before the test does.
    with face.consumer(broker.bootstrap, start="latest", allow_auto_create_topics=False) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        collect(consumer, 20)
        recreate(wire, topic)
        fill(wire, topic, 30)
        assert values(collect(consumer, 30)) == [b"%d" % number for number in range(30)]
        assert consumer.position((topic, 0)) == 30


def test_new_partitions_are_read_too(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap)
    with face.consumer(
        broker.bootstrap, topics=[topic], start="earliest", metadata_max_age_ms=100
    ) as consumer:
        fill(wire, topic, 5)
        collect(consumer, 5)
        grown = CreatePartitionsTopic(name=topic, count=3, assignments=None)
        wire.call(CreatePartitionsRequest(topics=[grown], timeout_ms=10_000))
        fill(wire, topic, 5, partition=2)
        assert {record.partition for record in collect(consumer, 5)} == {2}
        assert consumer.assignment() == {(topic, 0), (topic, 1), (topic, 2)}


@pytest.mark.parametrize("group", [None, "a group"])
def test_topics_that_match_a_pattern_later(
    face: Face, broker: Broker, wire: WireConnection, group: str | None
) -> None:
    prefix = unique("pattern")
    fill(wire, make_topic(broker.bootstrap, f"{prefix}-1"), 2)
    fill(wire, make_topic(broker.bootstrap, f"other-{prefix}-1"), 2)
    given = {"group": unique(group)} if group else {}
    with face.consumer(broker.bootstrap, start="earliest", metadata_max_age_ms=100, **given) as consumer:
        consumer.subscribe(re.compile(f"{prefix}-[0-9]"))
        assert {record.topic for record in collect(consumer, 2)} == {f"{prefix}-1"}
        fill(wire, make_topic(broker.bootstrap, f"{prefix}-2"), 2)
        assert {record.topic for record in collect(consumer, 2)} == {f"{prefix}-2"}
        assert consumer.subscription() == {f"{prefix}-1", f"{prefix}-2"}


def test_a_topic_that_is_not_there_yet(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = unique("later")
    with face.consumer(
        broker.bootstrap, start="earliest", allow_auto_create_topics=False, retry_backoff_max_ms=100
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(timeout=0.2) == []
        fill(wire, make_topic(broker.bootstrap, topic), 3)
        collect(consumer, 3)


def test_a_topic_that_never_comes_is_an_error_in_the_end(face: Face, broker: Broker) -> None:
    with face.consumer(
        broker.bootstrap, start="earliest", allow_auto_create_topics=False, default_api_timeout_ms=2_000
    ) as consumer:
        consumer.assign([("nowhere", 0)])
        with pytest.raises(klamm.TimedOut, match=r"nowhere-0.*UNKNOWN_TOPIC_OR_PARTITION"):
            consumer.poll(timeout=PATIENCE_S)


# ---- limits


def test_a_slow_reader_is_not_drowned(face: Face, broker: Broker, wire: WireConnection) -> None:
    topic = make_topic(broker.bootstrap, partitions=4)
    for partition in range(4):
        for _ in range(30):
            produce(wire, topic, batch_of(bytes(20_000)), partition=partition)
    with face.consumer(broker.bootstrap, start="earliest", prefetch_max_bytes=400_000) as consumer:
        consumer.assign([(topic, partition) for partition in range(4)])
        seen = 0
        largest = 0.0
        while seen < 120:
            seen += len(consumer.poll(timeout=PATIENCE_S, max_records=1))
            largest = max(largest, consumer.counters()["prefetched_bytes"])
        assert 100_000 < largest <= 400_000


def test_two_polls_at_once_are_refused(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with face.consumer(broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        outcomes: list[Any] = []

        def poll() -> None:
            try:
                outcomes.append(consumer.poll(timeout=1))
            except klamm.ClientError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ClientMisused", "list"]
        assert any("another of its polls is under way" in str(outcome) for outcome in outcomes)


def test_closing_ends_a_poll_that_waits(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    consumer = face.consumer(broker.bootstrap)
    consumer.assign([(topic, 0)])
    outcomes: list[Any] = []

    def poll() -> None:
        try:
            consumer.poll()
        except klamm.ClientError as error:
            outcomes.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    wait_until(lambda: consumer.counters()["fetches"] or consumer.counters()["requests"] > 2, "it waits")
    consumer.close()
    thread.join(PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [klamm.ClientClosed]


# ---- listeners


def test_listeners_may_use_the_consumer(face: Face, broker: Broker, wire: WireConnection) -> None:
    """They are called in the thread that polls, and what they ask for is done."""
    topic = make_topic(broker.bootstrap)
    fill(wire, topic, 10)
    group = unique("listeners")
    said: list[tuple[str, set[TopicPartition], int]] = []
    with face.consumer(broker.bootstrap, group=group, start="earliest", enable_auto_commit=False) as consumer:
        direct = getattr(consumer, "target", consumer)

        def assigned(partitions: set[TopicPartition]) -> None:
            said.append(("assigned", partitions, threading.get_ident()))
            direct.seek((topic, 0), 4)

        def revoked(partitions: set[TopicPartition]) -> Any:
            said.append(("revoked", partitions, threading.get_ident()))
            return direct.commit({(topic, 0): 7})

        consumer.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
        assert consumer.poll(timeout=PATIENCE_S)[0].offset == 4
    assert [(what, partitions) for what, partitions, _ in said] == [
        ("assigned", {(topic, 0)}),
        ("revoked", {(topic, 0)}),
    ]
    if face.name == "plain":
        assert {thread for _, _, thread in said} == {threading.get_ident()}
    with face.consumer(broker.bootstrap, group=group) as consumer:
        assert consumer.committed([(topic, 0)])[topic, 0].offset == 7


def test_what_a_listener_raises_comes_out_of_poll(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)

    def assigned(partitions: set[TopicPartition]) -> None:
        raise RuntimeError("not today")

    with face.consumer(broker.bootstrap, group=unique("listeners")) as consumer:
        consumer.subscribe([topic], on_assigned=assigned)
        with pytest.raises(RuntimeError, match="not today"):
            consumer.poll(timeout=PATIENCE_S)
        consumer.poll(timeout=0.1)
        assert consumer.assignment() == {(topic, 0)}


def test_unsubscribing_leaves_and_frees(face: Face, broker: Broker, wire: WireConnection) -> None:
    first, second = make_topic(broker.bootstrap), make_topic(broker.bootstrap)
    for topic in (first, second):
        fill(wire, topic, 3)
    with face.consumer(broker.bootstrap, group=unique("leaving"), topics=first, start="earliest") as consumer:
        collect(consumer, 3)
        assert consumer.poll(timeout=0) == []
        consumer.unsubscribe()
        assert consumer.assignment() == consumer.subscription() == set()
        assert consumer.poll(timeout=0.1) == []
        consumer.assign([(second, 0)])
        assert {record.topic for record in collect(consumer, 3)} == {second}
        consumer.unsubscribe()  # what nobody came back for is not finished, and is read again
        consumer.subscribe([first, second])
        collect(consumer, 3)
        assert {partition.topic for partition in consumer.assignment()} == {first, second}
