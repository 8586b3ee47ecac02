"""Records go in and come out the same, by every client, with every codec, to every other client."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from tests.clients.conftest import CLIENTS, Clients, NewTopic, unique
from tests.clients.contract import (
    CODECS,
    CREATE_TIME,
    IDEMPOTENCE,
    LOG_APPEND_TIME,
    SETS_TIMESTAMPS,
    TELLS_OFFSETS,
    AdminClient,
    Client,
    ClientError,
    Received,
    Record,
    values,
)
from tests.clients.selection import for_clients
from tests.moments import MIDNIGHT_MS

MESSAGE_TOO_LARGE = 10
INVALID_RECORD = 87
START_MS = MIDNIGHT_MS


def sample_records() -> list[Record]:
    """Every kind of record that a codec or a client may stumble over."""
    noise = random.Random(4).randbytes(40_000)
    return [
        Record(b"plain"),
        Record(b"with a key", key=b"key"),
        Record(None, key=b"tombstone"),
        Record(b"", key=b""),
        Record("grüße 🚀".encode(), key="ключ".encode()),
        Record(bytes(range(256)), key=bytes(range(255, -1, -1))),
        Record(b"headers", headers=(("trace", b"a1"), ("tenant", b"blue"))),
        Record(b"one name twice", headers=(("hop", b"first"), ("hop", b"second"))),
        Record(b"empty header", headers=(("flag", b""),)),
        Record(b"compresses well " * 8_000, key=b"long"),
        Record(noise, key=b"does not compress"),
    ]


def stamped(records: Sequence[Record]) -> list[Record]:
    return [
        Record(record.value, record.key, record.headers, START_MS + 1_000 * index)
        for index, record in enumerate(records)
    ]


def text_records() -> list[Record]:
    """What can be typed into a shell."""
    return [
        Record(b"plain"),
        Record(b"with a key", key=b"key"),
        Record(None, key=b"tombstone"),
        Record("grüße 🚀".encode(), key="ключ".encode()),
        Record(b"headers", headers=(("trace", b"a1"), ("tenant", b"blue"))),
        Record(b"compresses well " * 8_000, key=b"long"),
    ]


def records_for(writer: Client) -> list[Record]:
    return stamped(sample_records()) if SETS_TIMESTAMPS in writer.features else text_records()


def assert_same(got: Sequence[Received], sent: Sequence[Record]) -> None:
    assert [record.offset for record in got] == list(range(len(sent)))
    if sent[0].timestamp_ms is None:
        now_ms = time.time() * 1_000
        assert all(abs(now_ms - record.timestamp_ms) < 600_000 for record in got)
        assert [(one.key, one.value, one.headers) for one in got] == [
            (one.key, one.value, one.headers) for one in sent
        ]
    else:
        assert [record.content() for record in got] == list(sent)


@pytest.mark.parametrize("codec", CODECS)
@for_clients()
def test_a_client_reads_back_what_it_wrote(client: Client, codec: str, new_topic: NewTopic) -> None:
    topic, sent = new_topic(), records_for(client)
    offsets = client.produce(topic, sent, codec=codec)
    if TELLS_OFFSETS in client.features:
        assert offsets == list(range(len(sent)))
    got = client.consume(topic, 0, 0, len(sent))
    assert_same(got, sent)
    if SETS_TIMESTAMPS in client.features:
        assert {record.timestamp_type for record in got} == {CREATE_TIME}


@pytest.fixture(scope="module")
def library(clients: Clients) -> dict[str, str]:
    """A topic by writer, filled when first asked for: a partition by codec, all with the same records."""
    return {}


PAIRS = [
    pytest.param(reader, writer, marks=() if (one - other) % len(CLIENTS) in (1, 3) else pytest.mark.long)
    for one, reader in enumerate(CLIENTS)
    for other, writer in enumerate(CLIENTS)
]
"""`make test` has each client read what two others wrote, `make test-long` what each wrote."""


@pytest.mark.parametrize(("client", "writer_name"), PAIRS, indirect=["client"])
def test_a_client_reads_what_another_wrote(
    client: Client, writer_name: str, clients: Clients, library: dict[str, str], new_topic: NewTopic
) -> None:
    writer = clients.get(writer_name)
    if writer_name not in library:
        # Its records are of years ago, and many clients are to read them before retention may come by.
        library[writer_name] = new_topic(len(CODECS), {"retention.ms": "-1"})
        for partition, codec in enumerate(CODECS):
            writer.produce(library[writer_name], records_for(writer), partition=partition, codec=codec)
    sent = records_for(writer)
    for partition in range(len(CODECS)):
        assert_same(client.consume(library[writer_name], partition, 0, len(sent)), sent)


@for_clients()
def test_reading_starts_in_the_middle_of_a_batch(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(b"%d" % number) for number in range(50)], codec="gzip")
    got = client.consume(topic, 0, 17, 20)
    assert [(record.offset, record.value) for record in got] == [
        (number, b"%d" % number) for number in range(17, 37)
    ]


@for_clients()
def test_many_records_keep_their_order(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [b"%06d " % number + b"x" * (number % 1_500) for number in range(4_000)]
    client.produce(topic, [Record(value) for value in sent], codec="lz4")
    got = client.consume(topic, 0, 0, len(sent))
    assert values(got) == sent
    assert [record.offset for record in got] == list(range(len(sent)))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@for_clients()
def test_acknowledgements(client: Client, acks: str, new_topic: NewTopic) -> None:
    topic, sent = new_topic(), [b"a", b"b", b"c"]
    offsets = client.produce(topic, [Record(value) for value in sent], acks=acks)
    if acks != "0" and TELLS_OFFSETS in client.features:
        assert offsets == [0, 1, 2]
    assert values(client.consume(topic, 0, 0, 3)) == sent


@for_clients(IDEMPOTENCE)
def test_idempotent_producer(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [b"%05d" % number + b"-" * 200 for number in range(3_000)]
    assert client.produce(topic, [Record(value) for value in sent], idempotent=True) == list(range(3_000))
    # A second producer has an id of its own and begins its sequence anew.
    assert client.produce(topic, [Record(b"next")], idempotent=True) == [3_000]
    assert values(client.consume(topic, 0, 0, 3_001)) == [*sent, b"next"]


@for_clients(SETS_TIMESTAMPS)
def test_the_broker_sets_the_timestamps(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1_000)
    client.produce(topic, [Record(b"one", timestamp_ms=START_MS), Record(b"two", timestamp_ms=START_MS)])
    after_ms = int(time.time() * 1_000)
    for record in client.consume(topic, 0, 0, 2):
        assert before_ms <= record.timestamp_ms <= after_ms
        assert record.timestamp_type == LOG_APPEND_TIME


@for_clients(TELLS_OFFSETS)
def test_a_record_that_is_too_large_is_refused(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"max.message.bytes": "2000"})
    with pytest.raises(ClientError) as refused:
        client.produce(topic, [Record(b"x" * 5_000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.produce(topic, [Record(b"small")]) == [0]


@for_clients(TELLS_OFFSETS)
def test_a_compacted_topic_refuses_records_without_a_key(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"cleanup.policy": "compact"})
    with pytest.raises(ClientError) as refused:
        client.produce(topic, [Record(b"no key")])
    # aiokafka has no name for this code and calls every such error -1.
    assert refused.value.code == (-1 if client.name == "aiokafka" else INVALID_RECORD)
    assert client.produce(topic, [Record(b"value", key=b"key")]) == [0]


@for_clients()
def test_producing_creates_the_topic(client: Client, clients: Clients) -> None:
    topic = unique("created-by-use")
    client.produce(topic, [Record(b"first")])
    assert values(client.consume(topic, 0, 0, 1)) == [b"first"]
    administrator = clients.get("confluent-kafka")
    assert isinstance(administrator, AdminClient)
    assert administrator.partition_count(topic) == 1
