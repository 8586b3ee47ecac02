"""Topics are made, described, changed and deleted by every client that can administer."""

from __future__ import annotations

import pytest
from tests.clients.conftest import NewTopic, unique
from tests.clients.contract import AdminClient, ClientError, Record, values
from tests.clients.selection import for_clients
from tests.moments import MIDNIGHT_MS
from tests.waiting import wait_until

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40
START_MS = MIDNIGHT_MS


@for_clients(admin=True)
def test_life_of_a_topic(client: AdminClient) -> None:
    topic = unique("life")
    assert topic not in client.list_topics()
    client.create_topic(topic, 3, {"retention.ms": "123456000", "cleanup.policy": "compact"})
    wait_until(lambda: topic in client.list_topics(), f"{topic} is listed")
    assert client.partition_count(topic) == 3
    config = client.topic_config(topic)
    assert config["retention.ms"] == "123456000"
    assert config["cleanup.policy"] == "compact"
    assert config["segment.bytes"] == str(1 << 30)

    client.create_partitions(topic, 5)
    wait_until(lambda: client.partition_count(topic) == 5, "five partitions")
    client.produce(topic, [Record(b"in the new one", key=b"key")], partition=4)
    assert values(client.consume(topic, 4, 0, 1)) == [b"in the new one"]

    client.delete_topic(topic)
    wait_until(lambda: topic not in client.list_topics(), f"{topic} is gone")


@for_clients(admin=True)
def test_a_topic_made_anew_is_empty(client: AdminClient) -> None:
    topic = unique("anew")
    client.create_topic(topic, 2)
    client.produce(topic, [Record(b"old")])
    client.delete_topic(topic)
    wait_until(lambda: topic not in client.list_topics(), f"{topic} is gone")
    client.create_topic(topic, 1)
    wait_until(lambda: topic in client.list_topics(), f"{topic} is back")
    assert client.partition_count(topic) == 1
    assert client.watermarks(topic, 0) == (0, 0)
    client.produce(topic, [Record(b"new")])
    assert values(client.consume(topic, 0, 0, 1)) == [b"new"]


@for_clients(admin=True)
def test_configuration_changes(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"max.message.bytes": "2000"})
    with pytest.raises(ClientError):
        client.produce(topic, [Record(b"x" * 3_000)])
    client.set_topic_config(topic, {"max.message.bytes": "9000", "retention.ms": "7777"})
    wait_until(lambda: client.topic_config(topic)["max.message.bytes"] == "9000", "the change is described")
    assert client.topic_config(topic)["retention.ms"] == "7777"
    client.produce(topic, [Record(b"x" * 3_000)])
    assert values(client.consume(topic, 0, 0, 1)) == [b"x" * 3_000]


@for_clients(admin=True)
def test_wrong_configurations_are_refused(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    for config in ({"retention.ms": "soon"}, {"no.such.key": "1"}, {"cleanup.policy": "burn"}):
        with pytest.raises(ClientError) as refused:
            client.set_topic_config(topic, config)
        assert refused.value.code == INVALID_CONFIG, config
        with pytest.raises(ClientError) as refused:
            client.create_topic(unique("refused"), 1, config)
        assert refused.value.code == INVALID_CONFIG, config
    assert client.topic_config(topic)["retention.ms"] == "604800000"


@for_clients(admin=True)
def test_topics_that_cannot_be_made(client: AdminClient, new_topic: NewTopic) -> None:
    existing = new_topic()
    refusals = []
    for topic, partitions, replication_factor in (
        (existing, 1, 1),
        ("no spaces", 1, 1),
        ("x" * 250, 1, 1),
        (unique("none"), 0, 1),
        (unique("thrice"), 1, 3),
    ):
        with pytest.raises(ClientError) as refused:
            client.create_topic(topic, partitions, replication_factor=replication_factor)
        refusals.append(refused.value.code)
    assert refusals == [
        TOPIC_ALREADY_EXISTS,
        INVALID_TOPIC,
        INVALID_TOPIC,
        INVALID_PARTITIONS,
        INVALID_REPLICATION_FACTOR,
    ]


@for_clients(admin=True)
def test_partitions_are_never_taken_away(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for total in (2, 3):
        with pytest.raises(ClientError) as refused:
            client.create_partitions(topic, total)
        assert refused.value.code == INVALID_PARTITIONS
    assert client.partition_count(topic) == 3


@for_clients(admin=True)
def test_a_topic_that_is_not_there_cannot_be_deleted(client: AdminClient) -> None:
    with pytest.raises(ClientError) as refused:
        client.delete_topic(unique("missing"))
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@for_clients(admin=True)
def test_records_are_deleted(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    client.produce(topic, [Record(b"%d" % number) for number in range(10)])
    assert client.watermarks(topic, 0) == (0, 10)
    assert client.delete_records(topic, 0, 4) == 4
    assert client.watermarks(topic, 0) == (4, 10)
    assert values(client.consume(topic, 0, 4, 6)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    # Deleting less than is gone changes nothing; -1 stands for all there is.
    assert client.delete_records(topic, 0, -1) == 10
    assert client.watermarks(topic, 0) == (10, 10)
    assert client.watermarks(topic, 1) == (0, 0)
    client.produce(topic, [Record(b"after")])
    assert values(client.consume(topic, 0, 10, 1)) == [b"after"]


@for_clients(admin=True)
def test_records_beyond_the_end_cannot_be_deleted(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(b"one"), Record(b"two")])
    with pytest.raises(ClientError) as refused:
        client.delete_records(topic, 0, 3)
    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert client.watermarks(topic, 0) == (0, 2)


@for_clients(admin=True)
def test_offsets_by_time(client: AdminClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    # Two batches, so that the answer lies once at the start and once in the middle of a batch.
    for start in (0, 3):
        client.produce(
            topic,
            [
                Record(b"%d" % number, timestamp_ms=START_MS + 1_000 * number)
                for number in range(start, start + 3)
            ],
            codec="lz4",
        )
    looked_up = [
        client.offset_for_time(topic, 0, START_MS + milliseconds)
        for milliseconds in (-5, 0, 1, 1_000, 2_500, 4_001, 5_000, 5_001)
    ]
    assert looked_up == [0, 0, 1, 1, 3, 5, 5, None]
