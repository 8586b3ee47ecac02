"""Streams, trigger by trigger: limits, new and lost partitions, the end of an AvailableNow query."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import klamm
from klamm.testing import Broker
from pyspark_klamm import stream_driver
from pyspark_klamm.errors import DataLoss, OptionError, TopicMissing
from tests.client.topics import make_topic, unique
from tests.spark.driving import Stream, values


@pytest.fixture(autouse=True)
def metadata_is_always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test has to wait for a new partition to be seen."""
    monkeypatch.setattr(stream_driver, "METADATA_AGE_S", 0.0)


@pytest.fixture(scope="module")
def producer(klamm_bootstrap: str) -> Iterator[klamm.Producer]:
    with klamm.Producer(klamm_bootstrap) as producer:
        yield producer


@pytest.fixture(scope="module")
def admin(klamm_bootstrap: str) -> Iterator[klamm.Admin]:
    with klamm.Admin(klamm_bootstrap) as admin:
        yield admin


def send(producer: klamm.Producer, topic: str, *partitions: int, count: int = 1) -> None:
    for partition in partitions:
        for number in range(count):
            producer.send(topic, b"%d-%d" % (partition, number), partition=partition)
    producer.flush()


# ---- where it starts


def test_a_stream_starts_at_the_end(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap, partitions=2)
    send(producer, topic, 0, 1)
    stream = Stream(klamm_bootstrap, subscribe=topic)
    assert stream.offset == {topic: {"0": 1, "1": 1}}
    assert stream.trigger() == []
    send(producer, topic, 1)
    assert [(row["partition"], row["offset"]) for row in stream.trigger()] == [(1, 1)]
    assert stream.trigger() == []
    assert stream.reader.reportLatestOffset() == {topic: {"0": 1, "1": 2}}


def test_a_stream_starts_where_it_is_told(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap, partitions=2)
    send(producer, topic, 0, 1, count=3)
    assert len(Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest").trigger()) == 6
    given = json.dumps({topic: {"0": 1, "1": -1}})
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets=given)
    assert stream.offset == {topic: {"0": 1, "1": 3}}
    late = {"subscribe": topic, "startingTimestamp": 2**50}
    with pytest.raises(OptionError, match="no record at or after"):
        Stream(klamm_bootstrap, **late)
    stream = Stream(klamm_bootstrap, **late, startingOffsetsByTimestampStrategy="latest")
    assert stream.offset == {topic: {"0": 3, "1": 3}}


def test_a_stream_goes_on_where_a_checkpoint_says(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0, count=5)
    stream = Stream(klamm_bootstrap, start={topic: {"0": 3}}, subscribe=topic)
    assert values(stream.trigger()) == [b"0-3", b"0-4"]


def test_a_batch_is_read_again_as_it_was_planned(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0, count=5)
    stream = Stream(klamm_bootstrap, start={}, subscribe=topic)
    send(producer, topic, 0, count=5)
    stream.partitions = stream.reader.partitions({topic: {"0": 1}}, {topic: {"0": 4}})
    assert [row["offset"] for row in stream.read_partitions()] == [1, 2, 3]
    assert stream.reader.partitions({topic: {"0": 1}}, {topic: {"0": 1}}) == []


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_first_batch_is_planned_again_when_it_was_not_done(
    klamm_bootstrap: str, producer: klamm.Producer, starting: str
) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0, count=3)
    options = {"subscribe": topic, "startingOffsets": starting}
    end = Stream(klamm_bootstrap, **options).latest()
    send(producer, topic, 0, count=2)
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.create_partitions(topic, 2)
    restarted = Stream(klamm_bootstrap, **options)
    restarted.partitions = restarted.reader.partitions(restarted.offset, end)
    assert [row["offset"] for row in restarted.read_partitions()] == (
        [] if starting == "latest" else [0, 1, 2]
    )
    restarted.offset = end
    assert [row["offset"] for row in restarted.trigger()] == [3, 4]


def test_what_a_query_names_must_be_there(klamm_bootstrap: str) -> None:
    with pytest.raises(TopicMissing):
        Stream(klamm_bootstrap, subscribe=unique("missing"))


def test_a_stream_stops_where_it_is_told(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    """It reads no partition that is not named, not even a new one, and commits nothing."""
    topic = make_topic(klamm_bootstrap, partitions=3)
    send(producer, topic, 0, 1, 2, count=5)
    start = json.dumps({topic: {"0": 1, "1": 2, "2": 4}})
    stop = json.dumps({topic: {"0": 4, "2": 3}})
    options = {"subscribe": topic, "startingOffsets": start, "stoppingOffsets": stop}
    stream = Stream(klamm_bootstrap, **options, maxOffsetsPerTrigger=2)
    assert values(stream.trigger()) == [b"0-1", b"0-2"]
    assert stream.reader._driving().meeting_group() is None
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.create_partitions(topic, 4)
    send(producer, topic, 0, 3)
    assert values(stream.trigger()) == [b"0-3"]
    assert stream.trigger() == []
    assert stream.offset == {topic: {"0": 4, "1": 2, "2": 4}}
    available_now = Stream(klamm_bootstrap, start={topic: {"0": 3, "1": 2, "2": 4}}, **options)
    available_now.reader.prepareForTriggerAvailableNow()
    assert values(available_now.trigger(ReadAllAvailable())) == [b"0-3"]
    assert available_now.trigger(ReadAllAvailable()) == []


# ---- how much it takes


def test_a_batch_has_no_more_than_it_may(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap, partitions=3)
    send(producer, topic, 0, count=60)
    send(producer, topic, 1, count=40)
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert isinstance(stream.limit, ReadMaxRows)
    assert [len(stream.trigger()) for _ in range(5)] == [30, 30, 30, 10, 0]
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert len(stream.trigger(ReadAllAvailable())) == 100, "triggers that take everything lift the limit"


def test_a_batch_waits_for_enough_records(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0)
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 3}
    stream = Stream(klamm_bootstrap, **options)
    assert isinstance(stream.limit, ReadMinRows)
    assert len(stream.trigger()) == 1, "the first batch does not wait"
    send(producer, topic, 0, count=2)
    assert stream.trigger() == []
    send(producer, topic, 0)
    assert len(stream.trigger()) == 3
    send(producer, topic, 0)
    assert stream.trigger() == []
    assert len(stream.take_all()) == 1


def test_a_batch_does_not_wait_for_ever(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    options = {"minOffsetsPerTrigger": 1000, "maxOffsetsPerTrigger": 1000, "maxTriggerDelay": "100ms"}
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", **options)
    send(producer, topic, 0)
    assert len(stream.trigger()) == 1
    send(producer, topic, 0)
    started = time.monotonic()
    while not (rows := stream.trigger()):
        assert time.monotonic() < started + 30
    assert len(rows) == 1
    assert time.monotonic() - started >= 0.09


def test_tasks_are_split(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0, count=100)
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", minPartitions=4)
    assert [row["offset"] for row in stream.trigger()] == list(range(100))
    assert len(stream.partitions) == 4


def test_available_now_ends_where_the_logs_ended(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap, partitions=2)
    send(producer, topic, 0, 1, count=10)
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest")
    stream.reader.prepareForTriggerAvailableNow()
    send(producer, topic, 0, 1, count=10)
    assert len(stream.trigger()) == 20
    assert stream.trigger() == []


def test_available_now_comes_in_steps(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    send(producer, topic, 0, count=10)
    limits = {
        "maxOffsetsPerTrigger": 4,
        "minOffsetsPerTrigger": 4,
    }  # the rest is fewer, and comes all the same
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", **limits)
    stream.reader.prepareForTriggerAvailableNow()
    send(producer, topic, 0, count=10)
    assert [len(stream.trigger()) for _ in range(4)] == [4, 4, 2, 0]


# ---- when there is nothing


def test_an_idle_stream_hears_of_records_at_once(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    topic = make_topic(klamm_bootstrap)
    stream = Stream(klamm_bootstrap, subscribe=topic)
    stream.latest()
    started = time.monotonic()
    stream.latest()
    assert time.monotonic() - started >= stream_driver.IDLE_WAIT_S * 0.9, "the question is held"
    timer = threading.Timer(stream_driver.IDLE_WAIT_S / 3, lambda: send(producer, topic, 0))
    timer.start()
    assert stream.latest() == {topic: {"0": 1}}
    timer.join()


def test_a_busy_query_is_not_held_up(klamm_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source of the query may have records: Spark asks again only when it has dealt with them."""
    monkeypatch.setattr(stream_driver, "IDLE_GAP_S", 0.0)
    monkeypatch.setattr(stream_driver, "IDLE_WAIT_S", 30.0)
    stream = Stream(klamm_bootstrap, subscribe=make_topic(klamm_bootstrap))
    started = time.monotonic()
    stream.latest()
    stream.latest()
    assert time.monotonic() - started < 10


# ---- partitions come and go


def test_new_partitions_are_read_from_their_beginning(
    klamm_bootstrap: str, producer: klamm.Producer, admin: klamm.Admin
) -> None:
    topic = make_topic(klamm_bootstrap)
    stream = Stream(klamm_bootstrap, subscribe=topic, maxOffsetsPerTrigger=100)
    admin.create_partitions(topic, 3)
    with klamm.Producer(klamm_bootstrap) as later:  # which knows the new partitions
        send(later, topic, 0, 2, count=2)
    assert sorted(values(stream.trigger())) == [b"0-0", b"0-1", b"2-0", b"2-1"]
    assert stream.offset == {topic: {"0": 2, "1": 0, "2": 2}}


def test_new_topics_match_a_pattern(klamm_bootstrap: str, producer: klamm.Producer) -> None:
    prefix = unique("many")
    stream = Stream(klamm_bootstrap, subscribePattern=f"{prefix}-.*")
    assert stream.offset == {}
    assert stream.trigger() == []
    first = make_topic(klamm_bootstrap, f"{prefix}-1")
    send(producer, first, 0)
    assert values(stream.trigger()) == [b"0-0"]
    second = make_topic(klamm_bootstrap, f"{prefix}-2")
    send(producer, second, 0)
    assert [row["topic"] for row in stream.trigger()] == [second]


@pytest.fixture
def strict_broker() -> Iterator[str]:
    """One that does not make deleted topics anew because somebody asks for them."""
    with Broker({"auto.create.topics.enable": False}) as broker:
        yield broker.bootstrap


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_deleted_topic(strict_broker: str, by: str) -> None:
    topic, other = make_topic(strict_broker, "a-1"), make_topic(strict_broker, "a-2")
    given = {by: "a-1,a-2" if by == "subscribe" else "a-."}
    strict, lenient = Stream(strict_broker, **given), Stream(strict_broker, **given, failOnDataLoss=False)
    with klamm.Admin(strict_broker) as admin, klamm.Producer(strict_broker) as producer:
        admin.delete_topic(topic)
        send(producer, other, 0)
        with pytest.raises(DataLoss, match=r"a-1-0 no longer exists.*failOnDataLoss"):
            strict.trigger()
        assert [row["topic"] for row in lenient.trigger()] == [other]
        make_topic(strict_broker, topic)
        send(producer, topic, 0)
        assert [row["topic"] for row in lenient.trigger()] == [topic]


def test_a_topic_that_was_made_anew(strict_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_driver, "BACKWARD_PAUSE_S", 0.01)
    topic = make_topic(strict_broker)
    with klamm.Producer(strict_broker) as producer, klamm.Admin(strict_broker) as admin:
        send(producer, topic, 0, count=10)
        strict, lenient = (
            Stream(strict_broker, subscribe=topic, startingOffsets="earliest", failOnDataLoss=word)
            for word in (True, False)
        )
        assert len(strict.trigger()) == len(lenient.trigger()) == 10
        admin.delete_topic(topic)
        make_topic(strict_broker, topic)
        send(producer, topic, 0, count=3)
        with pytest.raises(DataLoss, match="was read up to offset 10, but its log ends at offset 3 now"):
            strict.trigger()
        assert [row["offset"] for row in lenient.trigger()] == [0, 1, 2]
        send(producer, topic, 0)
        assert [row["offset"] for row in lenient.trigger()] == [3]
