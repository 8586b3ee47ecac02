"""The short way of a repeated fetch must be the long way, only shorter."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.apis.fetch_shortcut import MAX_SHAPES, AnswerEncoder, FetchShortcut, OtherShape, RequestShape
from klamm.apis.fetches import Fetch, FetchOptions, positions_of
from klamm.apis.registry import Request
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import encode_request_frame, encode_response_frame, parse_request_header
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest
from klamm.records.builder import build_batch, number_records
from klamm.replication.fetch_sessions import FetchedPartition, FetchSession
from klamm.replication.fetching import PartitionAnswer
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.replication.partitions import position
from tests.waiting import wait_until

NOW_MS = 1_700_000_000_000
VERSIONS = (9, 10, 11, 12, 13, 15, 17, 18)
TOPIC_ID = bytes(range(16))


def fetch_partition(chance: random.Random, version: int, *, is_follower: bool) -> FetchPartition:
    partition = FetchPartition(
        partition=chance.randrange(2**31),
        current_leader_epoch=chance.randrange(-1, 100),
        fetch_offset=chance.randrange(2**63),
        log_start_offset=chance.randrange(-1, 2**40),
        partition_max_bytes=chance.randrange(2**31),
    )
    if version >= 12:
        partition.last_fetched_epoch = chance.randrange(-1, 100)
    if version >= 18 and is_follower:
        partition.high_watermark = chance.randrange(2**62)
    return partition


def fetch_request(
    chance: random.Random, version: int, counts: list[int], *, session_id: int, is_follower: bool
) -> FetchRequest:
    """A request for so many partitions of each topic."""
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1_000_000,
        session_id=session_id,
        session_epoch=chance.randrange(1, 2**31) if session_id else -1,
    )
    if version >= 11:
        request.rack_id = "rack-7"
    if is_follower and version >= 15:
        request.replica_state = ReplicaState(replica_id=3, replica_epoch=44)
    elif version < 15:
        request.replica_id = 3 if is_follower else -1
    for number, count in enumerate(counts):
        partitions = [fetch_partition(chance, version, is_follower=is_follower) for _ in range(count)]
        request.topics.append(
            FetchTopic(topic_id=bytes([number]) * 16, partitions=partitions)
            if version >= 13
            else FetchTopic(topic=f"tópic-{number}", partitions=partitions)
        )
    return request


def received(message: FetchRequest, version: int, correlation_id: int) -> Request[FetchRequest]:
    """The request as a handler gets it."""
    chunks = encode_request_frame(ApiKey.FETCH, version, correlation_id, "client", message)
    frame = memoryview(b"".join(chunks))[4:]
    decoded, _ = decode(FetchRequest, version, frame, parse_request_header(frame)[-1])
    nobody: Any = None
    return Request(decoded, version, "client", nobody, nobody, frame)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_follower", [False, True])
@pytest.mark.parametrize("session_id", [0, 77])
def test_a_shape_reads_what_the_codec_reads(version: int, is_follower: bool, session_id: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for counts in ([], [1], [3], [1, 1], [2, 40, 1]):
        first, second = (
            received(
                fetch_request(chance, version, counts, session_id=session_id, is_follower=is_follower),
                version,
                correlation_id,
            )
            for correlation_id in (5, 2**31 - 1)
        )
        shape = RequestShape(first, FetchOptions.of(first.message, version, 1_000_000))
        correlation_id, session_epoch, positions = shape.read(second.frame)
        assert correlation_id == 2**31 - 1
        assert session_epoch == second.message.session_epoch, f"seed {seed}"
        assert positions == list(positions_of(second.message, version)), f"seed {seed}"
        assert FetchOptions.of(second.message, version, 1_000_000) == shape.options


@pytest.mark.parametrize("version", VERSIONS)
def test_other_bytes_have_another_shape(version: int) -> None:
    chance = random.Random(version)
    message = fetch_request(chance, version, [1, 2], session_id=77, is_follower=False)
    known = received(message, version, 5)
    shape = RequestShape(known, FetchOptions.of(known.message, version, 1_000_000))
    read = shape.read(known.frame)
    places_of_fields = 0
    for place in range(len(known.frame)):
        changed = bytearray(known.frame)
        changed[place] ^= 1
        try:
            assert shape.read(memoryview(changed)) != read, place
        except OtherShape:
            continue
        places_of_fields += 1
    # Correlation id, session epoch, and of each partition all fields of its version.
    assert places_of_fields == 4 + 4 + 3 * (32 if version >= 12 else 28)


@pytest.mark.parametrize(
    "change",
    [
        {"session_epoch": 0},
        {"session_epoch": -1},
        {"session_id": 0},
        {"forgotten_topics_data": [ForgottenTopic(topic="gone", partitions=[1])]},
    ],
)
def test_requests_that_do_more_get_no_shape(change: dict[str, Any]) -> None:
    message = fetch_request(random.Random(1), 11, [1], session_id=77, is_follower=False)
    for name, value in change.items():
        setattr(message, name, value)
    request = received(message, 11, 5)
    with pytest.raises(OtherShape):
        RequestShape(request, FetchOptions.of(request.message, 11, 1_000_000))


@pytest.mark.parametrize("session_epoch", [0, -1])
def test_a_session_that_ends_or_begins_anew_is_decoded(session_epoch: int) -> None:
    message = fetch_request(random.Random(1), 17, [1], session_id=77, is_follower=False)
    known = received(message, 17, 5)
    shape = RequestShape(known, FetchOptions.of(known.message, 17, 1_000_000))
    message.session_epoch = session_epoch
    with pytest.raises(OtherShape):
        shape.read(received(message, 17, 6).frame)


# ---- answers


def random_answer(chance: random.Random, version: int, *, is_plain: bool) -> PartitionAnswer:
    name: str | bytes = chance.choice((TOPIC_ID, bytes(16))) if version >= 13 else chance.choice(("a", "bé"))
    fetched = FetchedPartition(position((name, chance.randrange(1000))))
    size = chance.choice((None, 1, 100, 126, 127, 128, 16_383, 70_000))
    records = None if size is None else chance.randbytes(size)
    answer = PartitionAnswer(fetched, None, chance.randrange(2**62), chance.randrange(2**40), records)
    if is_plain:
        return answer
    return answer._replace(error=KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "no"), records=None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_read_committed", [False, True])
def test_answers_are_encoded_as_the_codec_does(version: int, is_read_committed: bool) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    encoder = AnswerEncoder(version, is_read_committed)
    nobody: Any = SimpleNamespace()
    options = FetchOptions(version, -1, -1, 500, 1, 1000, is_read_committed, "")
    for _ in range(50):
        fetch = Fetch(
            nobody,
            nobody,
            FetchSession(session_id=chance.randrange(3)),
            options,
            correlation_id=chance.randrange(99),
        )
        answers = [
            random_answer(chance, version, is_plain=True) for _ in range(chance.choice((0, 1, 1, 2, 5)))
        ]
        if chance.random() < 0.1:
            answers.append(random_answer(chance, version, is_plain=False))
        for _ in range(2):  # the second time it may be shared
            encoded = encoder.encode(fetch, answers)
            expected = encode_response_frame(
                ApiKey.FETCH, version, fetch.correlation_id, fetch.response(answers)
            )
            assert b"".join(encoded) == b"".join(expected), f"seed {seed}"


def test_one_body_is_shared_by_all_sessions_at_an_offset() -> None:
    encoder = AnswerEncoder(17, False)
    nobody: Any = SimpleNamespace()
    options = FetchOptions(17, -1, -1, 500, 1, 1000, False, "")
    records = b"batch"
    frames = []
    for session_id in (1, 2):
        fetched = FetchedPartition(position((TOPIC_ID, 0)))
        fetch = Fetch(nobody, nobody, FetchSession(session_id=session_id), options)
        frames.append(encoder.encode(fetch, [PartitionAnswer(fetched, None, 7, 0, records)]))
    assert frames[0][1] is frames[1][1] is records
    assert frames[0][2] is frames[1][2]
    assert frames[0][0] != frames[1][0]


# ---- through a broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


class Topic:
    """A topic of three partitions, and fetches of it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        with WireConnection(broker.bootstrap) as connection:
            created = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
            connection.call(CreateTopicsRequest(topics=[created], timeout_ms=10_000))
            metadata = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        self.topic_id = metadata.topics[0].topic_id

    def produce(self, connection: WireConnection, partition: int) -> None:
        batch = bytes(build_batch(number_records([(b"key", b"value")], NOW_MS)))
        data = [PartitionProduceData(index=partition, records=batch)]
        connection.call(
            ProduceRequest(
                acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=self.name, partition_data=data)]
            ),
            9,
        )

    def fetch(
        self, version: int, offsets: dict[int, int], session: tuple[int, int] = (0, -1)
    ) -> FetchRequest:
        asked = [
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1_000_000)
            for partition, offset in offsets.items()
        ]
        topic = (
            FetchTopic(topic_id=self.topic_id, partitions=asked)
            if version >= 13
            else FetchTopic(topic=self.name, partitions=asked)
        )
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1_000_000,
            session_id=session[0],
            session_epoch=session[1],
            topics=[topic] if asked else [],
        )


def told(response: Any) -> list[tuple[Any, ...]]:
    return [
        (
            part.partition_index,
            part.error_code,
            part.high_watermark,
            part.log_start_offset,
            bytes(part.records),
        )
        for topic in response.responses
        for part in topic.partitions
    ]


def has_shortcut(broker: Broker) -> bool:
    async def look() -> bool:
        assert broker.node is not None
        return any(isinstance(each.shortcut, FetchShortcut) for each in broker.node.server._connections)

    return broker.run(look())


@pytest.mark.parametrize("version", [4, 7, *VERSIONS])
def test_fetches_without_a_session_are_answered_as_on_the_long_way(broker: Broker, version: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    topic = Topic(broker, f"full-{version}")
    with WireConnection(broker.bootstrap) as repeating, WireConnection(broker.bootstrap) as producer:
        for number in range(40):
            topic.produce(producer, chance.randrange(3))
            partitions = chance.choice(((0,), (0,), (1,), (0, 1, 2), (2, 1, 0)))
            offsets = {partition: chance.randrange(-1, 12) for partition in partitions}
            took = told(repeating.call(topic.fetch(version, offsets), version))
            with WireConnection(broker.bootstrap) as fresh:  # a new connection has no shortcut
                expected = told(fresh.call(topic.fetch(version, offsets), version))
            assert took == expected, f"request {number} of seed {seed}"
        assert has_shortcut(broker) == (version >= 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_gets_every_record_once(broker: Broker, version: int) -> None:
    topic = Topic(broker, f"session-{version}")
    with WireConnection(broker.bootstrap) as consumer, WireConnection(broker.bootstrap) as producer:
        first = consumer.call(topic.fetch(version, {0: 0, 1: 0, 2: 0}, (0, 0)), version)
        session_id = first.session_id
        offsets = [0, 0, 0]
        moved: dict[int, int] = {}
        for epoch in range(1, 40):
            if epoch % 3:
                topic.produce(producer, epoch % 2)
            response = consumer.call(topic.fetch(version, moved, (session_id, epoch)), version)
            assert response.error_code == ErrorCode.NONE
            moved = {}
            for index, error_code, high_watermark, _, records in told(response):
                assert error_code == ErrorCode.NONE
                assert bool(records) == (high_watermark > offsets[index])
                offsets[index] = high_watermark
                if records:
                    moved[index] = high_watermark
        assert offsets == [13, 13, 0]
        assert has_shortcut(broker)
        wrong = consumer.call(topic.fetch(version, {}, (session_id, 7)), version)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert wrong.responses == []


def test_pipelined_fetches_stand_for_themselves(broker: Broker) -> None:
    """The first one waits; the second one, of another offset, must not change what the first is given."""
    topic = Topic(broker, "pipelined")
    with WireConnection(broker.bootstrap) as consumer, WireConnection(broker.bootstrap) as producer:
        topic.produce(producer, 0)
        for _ in range(4):
            consumer.call(topic.fetch(11, {0: 0}), 11)
        assert has_shortcut(broker)
        waiting = topic.fetch(11, {0: 1})
        waiting.max_wait_ms = 60_000
        for _ in range(3):  # so that it has a shape as well
            consumer.send(waiting, 11)
            topic.produce(producer, 0)
            (part,) = told(consumer.receive())
            waiting.topics[0].partitions[0].fetch_offset = part[2]
        consumer.send(waiting, 11)
        waiting.topics[0].partitions[0].fetch_offset = 0
        consumer.send(waiting, 11)
        topic.produce(producer, 0)
        (first,), (second,) = told(consumer.receive()), told(consumer.receive())
        batch_bytes = len(first[4])
        assert first[2] == 5 and len(second[4]) in (4 * batch_bytes, 5 * batch_bytes)


def test_requests_that_alternate_have_a_shape_each() -> None:
    nobody: Any = None
    shortcut = FetchShortcut(nobody, nobody)
    chance = random.Random(1)
    for _ in range(3):
        for counts in ([], [1], [2]):
            request = received(fetch_request(chance, 17, counts, session_id=7, is_follower=False), 17, 1)
            shortcut.learn(request, FetchOptions.of(request.message, 17, 1000))
    assert len(shortcut._shapes) == 3


def test_a_connection_keeps_a_few_shapes() -> None:
    nobody: Any = None
    shortcut = FetchShortcut(nobody, nobody)
    chance = random.Random(1)
    for count in range(3 * MAX_SHAPES):
        for _ in range(2):
            message = fetch_request(chance, 17, [count], session_id=7, is_follower=False)
            request = received(message, 17, 1)
            shortcut.learn(request, FetchOptions.of(request.message, 17, 1000))
    assert len(shortcut._shapes) <= MAX_SHAPES
    assert len(shortcut._seen) <= MAX_SHAPES


def test_a_deleted_topic_is_told_on_the_short_way(broker: Broker) -> None:
    topic = Topic(broker, "deleted")
    with WireConnection(broker.bootstrap) as consumer:
        for _ in range(4):
            (part,) = told(consumer.call(topic.fetch(11, {0: 0}), 11))
            assert part[1] == ErrorCode.NONE
        assert has_shortcut(broker)
        consumer.call(DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=10_000), 3)
        (part,) = told(consumer.call(topic.fetch(11, {0: 0}), 11))
        assert part[1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_closed_connection_is_freed_with_its_shortcut_without_a_collection(broker: Broker) -> None:
    topic = Topic(broker, "closing")

    def of_shortcuts() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, FetchShortcut)}

    before = of_shortcuts()
    gc.disable()
    try:
        with WireConnection(broker.bootstrap) as connection:
            for _ in range(3):
                connection.call(topic.fetch(12, {0: 0}), 12)
            assert of_shortcuts() - before
        wait_until(lambda: not of_shortcuts() - before, "the shortcut is freed")
    finally:
        gc.enable()
