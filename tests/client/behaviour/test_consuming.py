"""Reading: assign, poll, iterate, seek, pause, and where reading starts."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import klamm
from klamm.client.results import TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face
from tests.client.reading import QUIET_S, collect, fill, values
from tests.client.topics import unique

FIRST_MS = 1_700_000_000_000
WITHOUT_RETENTION: dict[str, str | int] = {"retention.ms": -1}
"""Of topics with records of years ago, which brokers would delete."""


def fill_with_times(face: Face, bootstrap: str, topic: str, count: int) -> None:
    """A record every second from FIRST_MS on, each in a batch of its own."""
    with face.producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0, timestamp=FIRST_MS + number * 1000).result()


def test_poll_gives_what_there_is_and_no_more(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 25)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll(timeout=10, max_records=10)
        assert values(first) == sent[: len(first)] and 0 < len(first) <= 10
        rest = collect(consumer, 25 - len(first))
        assert values(first + rest) == sent
        started = time.monotonic()
        assert consumer.poll(timeout=QUIET_S) == []
        assert time.monotonic() - started >= QUIET_S * 0.9
        assert consumer.poll(timeout=0) == [], "and comes back"


@pytest.mark.parametrize("shares", [False, True], ids=["alone", "group"])
def test_a_topic_that_comes_later(
    face: Face, bootstrap: str, caplog: pytest.LogCaptureFixture, shares: bool
) -> None:
    """It is looked for again long before metadata is old, and a name that may be a slip is told of, once."""
    topic = unique("later")
    with face.consumer(
        bootstrap,
        group=topic if shares else None,
        topics=topic,
        start="earliest",
        allow_auto_create_topics=False,
    ) as consumer:
        complaint = f"looking for topic '{topic}' failed with UNKNOWN_TOPIC_OR_PARTITION"
        limit = time.monotonic() + 30
        while complaint not in caplog.text:
            assert time.monotonic() < limit, "nobody was told"
            assert consumer.poll(timeout=0.1) == []
        with face.admin(bootstrap) as admin:
            admin.create_topic(topic)
        sent = fill(face, bootstrap, topic, 3)
        assert values(collect(consumer, 3)) == sent
        assert caplog.text.count(complaint) == 1


def test_max_poll_records(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 25)
    with face.consumer(bootstrap, start="earliest", max_poll_records=4) as consumer:
        consumer.assign([(topic, 0)])
        got: list[Any] = []
        while len(got) < 25:
            records = consumer.poll(timeout=10)
            assert len(records) <= 4
            got += records
        assert values(got) == sent


def test_iteration(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 25)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert values(list(itertools.islice(consumer, 10))) == sent[:10]
        assert consumer.position((topic, 0)) == 10
        # Poll and iteration go on from one another.
        assert values(collect(consumer, 15)) == sent[10:]


def test_all_partitions_are_read(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(5)
    for index in range(5):
        fill(face, bootstrap, topic, 10, index)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(5)])
        records = collect(consumer, 50)
    for index in range(5):
        assert [one.offset for one in records if one.partition == index] == list(range(10))


def test_a_subscription_in_the_constructor(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), new_topic()
    sent = fill(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, group=group, topics=[topic], start="earliest") as consumer:
        assert set(consumer.subscription()) == {topic}
        assert values(collect(consumer, 10)) == sent
        assert set(consumer.assignment()) == {TopicPartition(topic, 0)}
    with face.consumer(bootstrap, group=group + "-2", topics=topic, start="earliest") as consumer:
        assert values(list(itertools.islice(consumer, 10))) == sent


def test_a_subscription_without_a_group(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """All partitions are ours, also those that come later."""
    topic = new_topic(2)
    for index in range(2):
        fill(face, bootstrap, topic, 5, index)
    with face.consumer(bootstrap, topics=[topic], start="earliest", metadata_max_age_ms=300) as consumer:
        assert len(collect(consumer, 10)) == 10
        with face.admin(bootstrap) as admin:
            admin.create_partitions(topic, 3)
        fill(face, bootstrap, topic, 5, 2)
        assert {record.partition for record in collect(consumer, 5)} == {2}


def test_records_larger_than_a_fetch(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    large = [bytes([number]) * 300_000 for number in range(5)]
    with face.producer(bootstrap) as producer:
        for value in large:
            producer.send(topic, value).result()
    limits = {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000, "prefetch_max_bytes": 1000}
    with face.consumer(bootstrap, start="earliest", **limits) as consumer:
        consumer.assign([(topic, 0)])
        assert values(collect(consumer, 5)) == large


def test_new_records_wake_a_waiting_poll(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with face.consumer(bootstrap, start="earliest") as consumer, face.producer(bootstrap) as producer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(timeout=QUIET_S) == []
        producer.send(topic, b"value").result()
        assert values(consumer.poll(timeout=30)) == [b"value"]


# ---- positions


def test_seek(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 30)
    partition = TopicPartition(topic, 0)
    with face.consumer(bootstrap, start="latest") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 20)
        assert consumer.position(partition) == 20
        assert values(collect(consumer, 10)) == sent[20:]
        assert consumer.position(partition) == 30
        # What was fetched ahead for the old position is dropped.
        consumer.seek((topic, 0), 25)
        assert values(collect(consumer, 5)) == sent[25:]
        consumer.seek_to_beginning(partition)
        assert values(collect(consumer, 30)) == sent
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 30
        assert consumer.poll(timeout=QUIET_S) == []
        consumer.seek_to_beginning()
        assert consumer.poll(timeout=10, max_records=1)[0].offset == 0


def test_pause_and_resume(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(face, bootstrap, topic, 10, 0)
    fill(face, bootstrap, topic, 10, 1)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([one, other])
        consumer.pause(one)
        assert set(consumer.paused()) == {one}
        assert {record.partition for record in collect(consumer, 10)} == {1}
        assert consumer.poll(timeout=QUIET_S) == []
        assert consumer.position(one) == 0
        consumer.resume(one)
        assert set(consumer.paused()) == set()
        assert [record.offset for record in collect(consumer, 10)] == list(range(10))


def test_partitions_are_given_one_by_one_or_as_a_list(
    face: Face, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with face.consumer(bootstrap) as consumer:
        for given in ([both], both, [tuple(both)], [(topic, 0), (topic, 1)]):
            consumer.assign(*given)
            assert set(consumer.assignment()) == set(both)
            consumer.pause(*given)
            assert set(consumer.paused()) == set(both)
            consumer.resume(*given)
            assert consumer.end_offsets(*given) == consumer.lag(*given) == dict.fromkeys(both, 0)
        consumer.pause((topic, 1))
        consumer.pause([])
        assert set(consumer.paused()) == {both[1]}, "an empty list is none, no list is all"
        assert consumer.end_offsets() == dict.fromkeys(both, 0)
        with pytest.raises(klamm.ClientMisused, match="without partitions"):
            consumer.assign()


def test_what_was_fetched_before_a_pause_waits(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 20)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll(timeout=10, max_records=5)
        consumer.pause((topic, 0))
        assert consumer.poll(timeout=QUIET_S) == []
        consumer.resume((topic, 0))
        assert values(first + collect(consumer, 20 - len(first))) == sent


def test_offsets_by_time(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, WITHOUT_RETENTION)
    fill_with_times(face, bootstrap, topic, 10)
    partition = TopicPartition(topic, 0)
    with face.consumer(bootstrap) as consumer:
        consumer.assign([partition])

        def found(moment: object) -> object:
            return consumer.offsets_for_times({partition: moment}).get(partition)

        exact = found(FIRST_MS + 3000)
        assert (exact.offset, exact.timestamp) == (3, FIRST_MS + 3000)
        assert found(FIRST_MS + 3001).offset == 4
        assert found(FIRST_MS - 1).offset == 0
        assert found(datetime.fromtimestamp(FIRST_MS / 1000 + 5, UTC)).offset == 5
        assert found(FIRST_MS + 100_000) is None


def test_beginning_end_and_lag(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(face, bootstrap, topic, 10, 0)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with face.consumer(bootstrap, start="earliest") as consumer:
        assert consumer.beginning_offsets([one, other]) == {one: 0, other: 0}
        assert consumer.end_offsets([one, other]) == {one: 10, other: 0}
        consumer.assign([one, other])
        consumer.seek(one, 4)
        assert consumer.lag(one) == {one: 6}
        collect(consumer, 6)
        assert consumer.lag() == {one: 0, other: 0}


def test_topics_and_partitions(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    with face.consumer(bootstrap) as consumer:
        assert len(consumer.partitions_for(topic)) == 3
        assert topic in consumer.topics()


# ---- where reading starts

ONE_HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", None),
        (datetime.fromtimestamp(FIRST_MS / 1000 + 4, UTC), 4),
        ("by_time:2023-11-14T22:13:26Z", 6),
        (timedelta(days=20_000), 0),
        (timedelta(hours=1), None),
        ("by_duration:PT1H", None),
        ("by_duration:P20000D", 0),
    ],
    ids=str,
)
def test_start(face: Face, bootstrap: str, new_topic: NewTopic, start: object, first: int | None) -> None:
    topic = new_topic(1, WITHOUT_RETENTION)
    fill_with_times(face, bootstrap, topic, 10)
    with face.consumer(bootstrap, start=start) as consumer, face.producer(bootstrap) as producer:
        consumer.assign([(topic, 0)])
        assert consumer.position((topic, 0)) == (10 if first is None else first)
        producer.send(topic, b"new").result()
        assert consumer.poll(timeout=10)[0].offset == (10 if first is None else first)


def test_a_start_in_the_configuration(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 3)
    for options in ({"auto_offset_reset": "earliest"}, {"config": {"auto.offset.reset": "earliest"}}):
        with face.consumer(bootstrap, **options) as consumer:
            consumer.assign([(topic, 0)])
            assert values(collect(consumer, 3)) == sent


def test_a_start_that_must_not_be_guessed(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(face, bootstrap, topic, 3)
    with face.consumer(bootstrap, group=topic, start="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(klamm.NoOffset) as refused:
            consumer.poll(timeout=10)
        assert topic in str(refused.value) and not refused.value.retriable
        # Told where to read, it goes on.
        consumer.seek((topic, 0), 1)
        assert len(collect(consumer, 2)) == 2


def test_a_position_that_is_not_there(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 5)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1000)
        assert values(collect(consumer, 5)) == sent
    with face.consumer(bootstrap, start="none") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1000)
        with pytest.raises(klamm.ClientError) as refused:
            consumer.poll(timeout=10)
        assert isinstance(refused.value, klamm.OffsetOutOfRange | klamm.NoOffset)


def test_records_that_were_deleted_meanwhile(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 10)
    with face.admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert values(collect(consumer, 4)) == sent[6:]
        assert consumer.beginning_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 6}
