"""Requests with one small batch: made and read without the general codec, written by whoever sends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import klamm
import klamm.aio
from klamm.client.network.connection import BrokerConnection
from klamm.client.producer.batches import Outcome
from klamm.client.producer.settings import ProducerSettings, producer_config
from klamm.client.producer.template import MOST_TEMPLATE_BYTES, ProduceTemplate
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.headers import encode_response_frame, parse_request_header
from klamm.protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest
from tests.client.network.fake_broker import SILENCE
from tests.client.producer.cores import PartitionLog
from tests.client.producer.scripted import (
    TOPIC,
    ScriptedTopic,
    answer_with,
    cut,
    unnamed,
    written,
    written_but_cut,
)
from tests.waiting import until

TOPIC_ID = b"0123456789abcdef"
PARTITION = 3
PATIENCE_S = 20.0
QUICK: dict[str, Any] = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5}


def template_of(**options: Any) -> ProduceTemplate:
    settings = ProducerSettings.of(producer_config("broker:1", None, None, options)[0])
    return ProduceTemplate(TOPIC_ID, PARTITION, "someone", settings)


def answer(response: ProduceResponse) -> memoryview:
    chunks = encode_response_frame(ProduceTemplate.api_key, ProduceTemplate.version, 77, response)
    return memoryview(b"".join(chunks))[4:]


def response_of(throttle_ms: int = 0, topic_id: bytes = TOPIC_ID, **partition: Any) -> ProduceResponse:
    said = PartitionProduceResponse(
        **{"index": PARTITION, "error_code": 0, "base_offset": 5, "log_start_offset": 2, **partition}
    )
    return ProduceResponse(
        responses=[TopicProduceResponse(topic_id=topic_id, partition_responses=[said])],
        throttle_time_ms=throttle_ms,
    )


# ---- the bytes


@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 16_382, 16_383, MOST_TEMPLATE_BYTES])
def test_a_request_of_the_template_is_what_the_general_decoder_expects(size: int) -> None:
    batch = bytearray(index % 251 for index in range(size))
    frame = template_of(acks="1", request_timeout_ms=1234).frame(2**31 - 1, batch)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    body = memoryview(frame)[4:]
    key, version, correlation_id, client_id, offset = parse_request_header(body)
    request, end = decode(ProduceRequest, version, body, offset)
    assert (key, version, correlation_id, client_id, end) == (0, 13, 2**31 - 1, "someone", len(body))
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, 1, 1234)
    ((topic_id, [data]),) = [(each.topic_id, each.partition_data) for each in request.topic_data]
    assert data.records is not None
    assert (topic_id, data.index, bytes(data.records)) == (TOPIC_ID, PARTITION, bytes(batch))


def test_an_answer_that_says_written_is_read() -> None:
    template = template_of()
    assert template.read(77, answer(response_of())) == Outcome(5, -1)
    largest = 2**63 - 1
    stamped = response_of(base_offset=largest, log_append_time_ms=1_700_000_000_000)
    assert template.read(77, answer(stamped)) == Outcome(largest, 1_700_000_000_000)


def with_endpoint() -> ProduceResponse:
    response = response_of()
    response.node_endpoints = [NodeEndpoint(node_id=1, host="elsewhere", port=9092)]
    return response


@pytest.mark.parametrize(
    "response",
    [
        response_of(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        response_of(throttle_ms=1),
        response_of(topic_id=b"fedcba9876543210"),
        response_of(index=PARTITION + 1),
        response_of(error_message="but"),
        response_of(record_errors=[BatchIndexAndErrorMessage(batch_index=0)]),
        response_of(current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=1)),
        with_endpoint(),
        ProduceResponse(responses=[]),
    ],
)
def test_every_other_answer_is_left_to_the_general_decoder(response: ProduceResponse) -> None:
    assert template_of().read(77, answer(response)) is None


def test_an_answer_that_is_cut_short_or_too_long_is_left_to_the_general_decoder() -> None:
    template, whole = template_of(), answer(response_of())
    assert all(template.read(77, whole[:size]) is None for size in range(len(whole)))
    assert template.read(77, memoryview(bytes(whole) + b"\0")) is None


def test_an_answer_to_another_request_is_left_to_the_general_decoder() -> None:
    assert template_of().read(78, answer(response_of())) is None


# ---- threads that write themselves


class Spy:
    """Looks on while threads write requests themselves. Some always go the long way: the first of all, which
    finds the leader, a producer id and a connection, and those that come while the loop has a turn before it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writers: list[int] = []
        self.largest = 0
        send_here = BrokerConnection.send_here

        def spied(
            connection: BrokerConnection, waiter: Any, prepared: Any, records: bytearray, now: float
        ) -> None:
            self.writers.append(threading.get_ident())
            self.largest = max(self.largest, len(records))
            send_here(connection, waiter, prepared, records, now)

        monkeypatch.setattr(BrokerConnection, "send_here", spied)


async def in_thread(work: Any, *arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(work, *arguments)


async def test_a_thread_writes_records_that_come_one_by_one_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    async with ScriptedTopic() as topic:

        def send() -> int:
            with klamm.Producer(topic.bootstrap, **QUICK) as producer:
                for number in range(20):
                    sent = producer.send(TOPIC, b"%d" % number).result(PATIENCE_S)
                    assert (sent.partition, sent.offset) == (0, number)
                counters = producer.counters()
                assert counters["records_sent"] == counters["batches_sent"] == 20
                return threading.get_ident()

        sender = await in_thread(send)
        assert topic.values() == [b"%d" % number for number in range(20)]
        assert set(spy.writers) == {sender} and len(spy.writers) < 20


@pytest.mark.parametrize(
    "options", [{"acks": 0}, {"linger_ms": 1}, {"compression_type": "gzip"}, {"enable_idempotence": False}]
)
async def test_lingering_and_unanswered_records_go_the_long_way(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    async with ScriptedTopic() as topic:

        def send() -> None:
            with klamm.Producer(topic.bootstrap, **QUICK, **options) as producer:
                for number in range(20):
                    producer.send(TOPIC, b"%d" % number).result(PATIENCE_S)

        await in_thread(send)
        await until(lambda: len(topic.values()) == 20)  # with acks=0 nobody waited for them
        assert topic.values() == [b"%d" % number for number in range(20)]
        assert bool(spy.writers) is ("acks" not in options and "linger_ms" not in options)


async def test_a_large_record_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    async with ScriptedTopic() as topic:
        values = [b"small", bytes(MOST_TEMPLATE_BYTES), b"small again", bytes(MOST_TEMPLATE_BYTES * 4)] * 5

        def send() -> None:
            with klamm.Producer(topic.bootstrap, **QUICK) as producer:
                for value in values:
                    producer.send(TOPIC, value).result(PATIENCE_S)

        await in_thread(send)
        assert topic.values() == values
        assert spy.writers and spy.largest < MOST_TEMPLATE_BYTES


@pytest.mark.parametrize(
    "step",
    [
        answer_with(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        unnamed,
        cut,
        written_but_cut,
    ],
)
async def test_what_a_thread_wrote_is_sent_again_like_anything_else(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    async with ScriptedTopic() as topic:
        topic.script = [written, written, step, written, step]

        def send() -> None:
            with klamm.Producer(topic.bootstrap, **QUICK) as producer:
                for number in range(8):
                    producer.send(TOPIC, b"%d" % number).result(PATIENCE_S)

        await in_thread(send)
        assert topic.values() == [b"%d" % number for number in range(8)]
        assert spy.writers


# ---- templates lead to whoever leads


async def test_records_follow_a_leader_that_metadata_name() -> None:
    """Nobody refuses anything: the next metadata say it, and the next record knows it."""
    async with ScriptedTopic(brokers=2) as topic:

        def send(values: list[bytes]) -> None:
            for value in values:
                producer.send(TOPIC, value).result(PATIENCE_S)

        with klamm.Producer(topic.bootstrap, metadata_max_age_ms=30, **QUICK) as producer:
            await in_thread(send, [b"%d" % number for number in range(5)])
            topic.leaders, topic.epoch = [2], 1
            await seen_twice_more(topic, ApiKey.METADATA)
            before = topic.brokers[0].count(ApiKey.PRODUCE)
            await in_thread(send, [b"%d" % number for number in range(5, 10)])
            assert topic.brokers[0].count(ApiKey.PRODUCE) == before
            assert topic.values() == [b"%d" % number for number in range(10)]
            await in_thread(producer.close)


async def test_records_follow_a_topic_that_was_made_anew() -> None:
    async with (
        ScriptedTopic() as topic,
        klamm.aio.Producer(topic.bootstrap, metadata_max_age_ms=30, **QUICK) as producer,
    ):
        for _ in range(5):
            await producer.send(TOPIC, b"old")
        topic.topic_id, topic.epoch, topic.logs = b"n" * 16, 1, [PartitionLog()]
        await seen_twice_more(topic, ApiKey.METADATA)
        for _ in range(5):
            await producer.send(TOPIC, b"new")
        requests = [request for key, _, request in topic.brokers[0].requests if key == ApiKey.PRODUCE]
        named = [request.topic_data[0].topic_id for request in requests]  # type: ignore[attr-defined]
        assert [bytes(each) for each in named] == [b"s" * 16] * 5 + [b"n" * 16] * 5


async def test_nothing_goes_by_a_connection_that_is_retired() -> None:
    async with ScriptedTopic() as topic, klamm.aio.Producer(topic.bootstrap, **QUICK) as producer:
        await producer.send(TOPIC, b"first")
        await producer.send(TOPIC, b"in a template")
        network = producer._engine._network
        retired = network.open_connection(1)
        assert retired is not None
        topic.brokers[0].answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        owed = retired.send(ListGroupsRequest(), retired.version(ApiKey.LIST_GROUPS))
        network._pool.keep_only({})  # as when a broker has another address
        assert retired.is_retired and not retired.closed, "an answer is owed"
        async with asyncio.timeout(PATIENCE_S):
            await producer.send(TOPIC, b"by another")
        assert network.open_connection(1) not in (None, retired)
        assert retired.in_flight == 1 and topic.values() == [b"first", b"in a template", b"by another"]
        owed.cancel()


async def seen_twice_more(topic: ScriptedTopic, key: ApiKey) -> None:
    """Asked for twice, so that the first answer has been taken in."""
    count = topic.brokers[0].count(key)
    await until(lambda: topic.brokers[0].count(key) >= count + 2)


async def test_many_threads_share_one_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    async with ScriptedTopic(partitions=2) as topic:
        topic.script = [written] * 50 + [written_but_cut, written, cut]

        def send(producer: klamm.Producer, name: int) -> None:
            for number in range(60):
                delivery = producer.send(TOPIC, b"%d %d" % (name, number), partition=name % 2)
                if number % 3:
                    delivery.result(PATIENCE_S)

        def send_all() -> None:
            with klamm.Producer(topic.bootstrap, **QUICK) as producer:
                threads = [threading.Thread(target=send, args=(producer, name)) for name in range(6)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(PATIENCE_S)
                producer.flush(PATIENCE_S)

        await in_thread(send_all)
        for partition in range(2):
            values = [value.split() for value in topic.values(partition) if value is not None]
            assert len(values) == 180
            for name in range(partition, 6, 2):
                mine = [int(number) for sender, number in values if int(sender) == name]
                assert mine == list(range(60))
        assert spy.writers


async def test_a_partitioner_may_send_while_its_record_is_being_taken() -> None:
    async with ScriptedTopic(partitions=2) as topic:

        def send() -> None:
            def choose(name: str, key: bytes | None, partitions: int) -> int:
                if key == b"outer":
                    inner.append(producer.send(TOPIC, b"inner", partition=0))
                return 0

            inner: list[Any] = []
            with klamm.Producer(topic.bootstrap, partitioner=choose, **QUICK) as producer:
                for _ in range(10):
                    producer.send(TOPIC, b"alone", partition=0).result(PATIENCE_S)
                    producer.send(TOPIC, b"outer", key=b"outer").result(PATIENCE_S)
                for delivery in inner:
                    delivery.result(PATIENCE_S)

        await in_thread(send)
        assert sorted(topic.values()) == [b"alone"] * 10 + [b"inner"] * 10 + [b"outer"] * 10
