"""The asyncio producer against brokers that follow a script, over real sockets."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

import klamm
from klamm.client.errors import (
    AuthorizationFailed,
    BrokerError,
    ClientClosed,
    ClientError,
    DeliveryTimedOut,
    RecordRefused,
    TimedOut,
    UnsupportedRequest,
)
from klamm.client.producer.unseen import MOST_LINES
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k22_init_producer_id import InitProducerIdResponse
from klamm.records.batch import parse_header
from klamm.records.reader import iter_records
from tests.client.network.fake_broker import SILENCE, topic_of
from tests.client.producer.scripted import (
    LIMIT_S,
    PRODUCER_ID,
    TOPIC,
    ScriptedTopic,
    answer_with,
    cut,
    moved_to,
    numbers,
    producer_of,
    send_all,
    unnamed,
    written,
    written_but_cut,
    written_but_silent,
)
from tests.waiting import until

# ---- sent again, and written once


@pytest.mark.parametrize(
    "step",
    [
        answer_with(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer_with(ErrorCode.NOT_ENOUGH_REPLICAS),
        answer_with(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        answer_with(ErrorCode.UNKNOWN_TOPIC_ID),
        answer_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        answer_with(ErrorCode.UNKNOWN_PRODUCER_ID),
        answer_with(ErrorCode.INVALID_PRODUCER_EPOCH),
        written_but_cut,
        cut,
        unnamed,
    ],
    ids=[
        "not-leader",
        "not-enough",
        "unknown-topic",
        "unknown-id",
        "out-of-order",
        "unknown-producer",
        "old-epoch",
        "written-but-cut",
        "cut",
        "unnamed",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 4])
async def test_nothing_is_lost_doubled_or_reordered(step: Any, place: int) -> None:
    async with ScriptedTopic() as topic, producer_of(topic, batch_size=0) as producer:
        topic.script = [written] * place + [step]
        sent = await send_all(producer, 10)
    assert topic.values() == numbers(10) and not topic.script
    assert [one.offset for one in sent] == list(range(10))


async def test_a_broker_that_goes_silent() -> None:
    async with ScriptedTopic() as topic:
        async with producer_of(topic, request_timeout_ms=1_000, batch_size=0) as producer:
            topic.script = [written, written_but_silent]
            assert [one.offset for one in await send_all(producer, 6)] == list(range(6))
        assert topic.values() == numbers(6)
        assert topic.brokers[0].connections >= 2


async def test_any_mishap_in_any_order() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    steps = [
        written,
        written,
        written,
        written_but_cut,
        cut,
        unnamed,
        *(
            answer_with(code)
            for code in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.REQUEST_TIMED_OUT,
            )
        ),
    ]
    async with ScriptedTopic(partitions=3) as topic:
        async with producer_of(topic, batch_size=150) as producer:
            topic.script = [chance.choice(steps) for _ in range(150)]
            deliveries = []
            for number in range(600):
                deliveries.append(producer.send(TOPIC, b"%d" % number, partition=number % 3))
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
            async with asyncio.timeout(60):
                for delivery in deliveries:
                    await delivery
        assert not topic.script
        for index in range(3):
            assert topic.values(index) == [b"%d" % number for number in range(index, 600, 3)]


async def test_without_idempotence_a_lost_answer_doubles() -> None:
    """The test before is worth something: this is what it rules out."""
    async with ScriptedTopic() as topic, producer_of(topic, enable_idempotence=False) as producer:
        topic.script = [written_but_cut]
        await send_all(producer, 1)
        assert topic.values() == [b"0", b"0"]


async def test_duplicate_sequence_counts_as_written() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        topic.script = [answer_with(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)]
        (sent,) = await send_all(producer, 1)
        assert sent.offset == -1


async def test_what_is_refused_is_told_and_the_rest_goes_on() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        topic.script = [written, answer_with(ErrorCode.INVALID_RECORD, error_message="no such record")]
        await send_all(producer, 1)
        with pytest.raises(RecordRefused, match="no such record"):
            await producer.send(TOPIC, b"bad")
        assert (await producer.send(TOPIC, b"good")).offset == 1
        last = parse_header(topic.brokers[0].requests[-1][2].topic_data[0].partition_data[0].records)  # type: ignore[attr-defined]
        assert (last.producer_id, last.producer_epoch, last.base_sequence) == (PRODUCER_ID, 1, 0)


# ---- old brokers


@pytest.mark.parametrize("newest", [3, 7, 9, 12])
async def test_brokers_without_topic_ids(newest: int) -> None:
    async with ScriptedTopic() as topic:
        broker = topic.brokers[0]
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(
            PRODUCE=(0, newest)
        )
        async with producer_of(topic) as producer:
            assert [one.offset for one in await send_all(producer, 3)] == [0, 1, 2]
        assert {version for key, version, _ in broker.requests if key == ApiKey.PRODUCE} == {newest}


async def test_a_topic_without_an_id_goes_by_its_name() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        topic.topic_id = bytes(16)
        await send_all(producer, 1)
        assert {v for key, v, _ in topic.brokers[0].requests if key == ApiKey.PRODUCE} == {12}


async def test_zstd_needs_a_broker_that_knows_it() -> None:
    async with ScriptedTopic() as topic:
        broker = topic.brokers[0]
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(PRODUCE=(0, 6))
        async with producer_of(topic, compression_type="zstd") as producer:
            with pytest.raises(RecordRefused, match="zstd"):
                await send_all(producer, 1)


async def test_idempotence_needs_a_broker_that_gives_ids() -> None:
    async with ScriptedTopic() as topic:
        broker = topic.brokers[0]
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(
            INIT_PRODUCER_ID=None
        )
        async with producer_of(topic) as producer:
            with pytest.raises(UnsupportedRequest):
                await send_all(producer, 1)
        async with producer_of(topic, enable_idempotence=False) as producer:
            await send_all(producer, 1)


# ---- errors that are told


async def test_who_gets_no_id_is_told_at_once() -> None:
    async with ScriptedTopic() as topic:
        topic.brokers[0].answers[ApiKey.INIT_PRODUCER_ID] = lambda request, version: InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
        async with producer_of(topic) as producer:
            with pytest.raises(AuthorizationFailed):
                await send_all(producer, 1)


async def test_delivery_times_out_with_the_last_cause() -> None:
    async with ScriptedTopic() as topic, producer_of(topic, delivery_timeout_ms=1_500) as producer:
        topic.script = [answer_with(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000
        with pytest.raises(DeliveryTimedOut) as caught:
            await send_all(producer, 1)
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS and "NOT_ENOUGH_REPLICAS" in str(
            caught.value
        )


async def test_delivery_times_out_while_nobody_answers() -> None:
    async with ScriptedTopic() as topic, producer_of(topic, delivery_timeout_ms=1_500) as producer:
        topic.script = [written_but_silent]
        with pytest.raises(DeliveryTimedOut, match="may have been written"):
            await send_all(producer, 1)


async def test_flush_and_close_have_their_own_time() -> None:
    async with ScriptedTopic() as topic:
        producer = producer_of(topic)
        topic.script = [lambda script, request: SILENCE]
        delivery = producer.send(TOPIC, b"never answered")
        with pytest.raises(TimedOut, match="1 records left"):
            await producer.flush(0.2)
        started = time.monotonic()
        await producer.close(0.2)
        assert time.monotonic() - started < LIMIT_S, "request_timeout_ms is longer"
        assert isinstance(delivery.exception(), Exception) and "closed" in str(delivery.exception())


async def test_a_topic_that_metadata_refuses() -> None:
    async with ScriptedTopic() as topic:
        topic.brokers[0].answers[ApiKey.METADATA] = lambda request, version: topic.brokers[0].metadata(
            topic_of(TOPIC, [], error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        )
        async with producer_of(topic) as producer:
            with pytest.raises(BrokerError) as caught:
                await send_all(producer, 1)
            assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


# ---- how requests are made


@pytest.mark.parametrize(("acks", "on_the_wire"), [("all", -1), (1, 1), (0, 0)])
async def test_acks(acks: Any, on_the_wire: int) -> None:
    async with ScriptedTopic() as topic:
        async with producer_of(topic, acks=acks) as producer:
            sent = await send_all(producer, 5)
        await until(lambda: len(topic.values()) == 5)  # with acks=0 nobody waited for them
        assert topic.acks_seen == {on_the_wire} and topic.values() == numbers(5)
        assert {one.offset for one in sent} == ({-1} if acks == 0 else set(range(5)))


async def test_one_request_has_a_batch_for_each_partition() -> None:
    async with ScriptedTopic(partitions=3) as topic, producer_of(topic, linger_ms=20) as producer:
        deliveries = [producer.send(TOPIC, b"v", partition=number % 3) for number in range(9)]
        for delivery in deliveries:
            await delivery
        assert topic.produces == 1


async def test_records_gather_while_requests_are_under_way() -> None:
    async with ScriptedTopic() as topic:
        limit = 2
        async with producer_of(topic, max_in_flight_requests_per_connection=limit) as producer:
            await send_all(producer, 1)
            gate = asyncio.Event()
            under_way = 0

            def slow(script: ScriptedTopic, request: Any) -> Any:
                async def answer() -> Any:
                    nonlocal under_way
                    under_way += 1
                    await gate.wait()
                    return script.write(request)

                return answer()

            topic.script = [slow] * 10
            deliveries = [producer.send(TOPIC, b"first")]
            for number in range(100):
                await asyncio.sleep(0)
                deliveries.append(producer.send(TOPIC, b"%d" % number))
            await until(lambda: under_way > 0)
            gate.set()
            for delivery in deliveries:
                await delivery
        assert topic.produces <= 1 + limit + 2, "what came meanwhile went together"


async def test_a_throttled_producer_pauses() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        await send_all(producer, 1)

        def throttle(script: ScriptedTopic, request: Any) -> Any:
            response = script.write(request)
            response.throttle_time_ms = 300
            return response

        topic.script = [throttle]
        await producer.send(TOPIC, b"1")
        started = time.monotonic()
        await producer.send(TOPIC, b"2")
        assert time.monotonic() - started > 0.25


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_codecs(codec: str) -> None:
    async with ScriptedTopic() as topic, producer_of(topic, compression_type=codec, linger_ms=10) as producer:
        deliveries = [producer.send(TOPIC, b"%d " % number * 50, key=b"k") for number in range(100)]
        for delivery in deliveries:
            await delivery
        records = [
            record
            for key, _, request in topic.brokers[0].requests
            if key == ApiKey.PRODUCE
            for record in iter_records(request.topic_data[0].partition_data[0].records)  # type: ignore[attr-defined]
        ]
        assert [record.value for record in records] == [b"%d " % number * 50 for number in range(100)]


# ---- callbacks, closing, and what nobody looks at


async def test_no_id_to_be_had_is_not_asked_for_all_the_time() -> None:
    async with ScriptedTopic() as topic:
        broker = topic.brokers[0]
        broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, version: InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
        async with producer_of(topic) as producer:
            with pytest.raises(AuthorizationFailed):
                await send_all(producer, 1)
            asked = broker.count(ApiKey.INIT_PRODUCER_ID)
            for _ in range(20):
                await producer._engine._network.request_refresh()  # there and back, with a pause
            assert broker.count(ApiKey.INIT_PRODUCER_ID) == asked, "nothing waits for an id"


async def test_a_callback_may_send_without_end_when_nobody_answers() -> None:
    async with ScriptedTopic() as topic, producer_of(topic, acks="0", enable_idempotence=False) as producer:
        await producer.send(TOPIC, b"first")
        left = 1500  # more than the interpreter nests calls
        done = asyncio.Event()

        def again(_: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                producer.send(TOPIC, b"v").add_done_callback(again)
            else:
                done.set()

        producer.send(TOPIC, b"v").add_done_callback(again)
        async with asyncio.timeout(LIMIT_S):
            await done.wait()


async def test_a_thread_that_waits_for_room_is_told_when_the_producer_is_closed() -> None:
    async with ScriptedTopic() as topic:
        topic.script = [lambda script, request: SILENCE] * 100
        producer = await asyncio.to_thread(
            klamm.Producer, topic.bootstrap, buffer_memory=2000, max_request_size=1000, batch_size=0
        )
        await asyncio.to_thread(producer.send, TOPIC, bytes(900))
        await until(lambda: topic.produces == 1)
        waiting = asyncio.create_task(asyncio.to_thread(producer.send, TOPIC, bytes(900)))
        second = asyncio.create_task(asyncio.to_thread(producer.send, TOPIC, bytes(900)))
        await until(lambda: producer.counters()["buffer_full"] >= 1)
        await asyncio.to_thread(producer.close, 0.0)
        async with asyncio.timeout(LIMIT_S):  # less than max_block_ms
            outcomes = await asyncio.gather(waiting, second, return_exceptions=True)
        assert any(isinstance(outcome, ClientClosed) for outcome in outcomes)


async def test_what_fails_while_nobody_looks_is_logged_once_per_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedTopic() as topic, producer_of(topic, client_id="lonely") as producer:
        await send_all(producer, 1)
        topic.script = [answer_with(ErrorCode.INVALID_RECORD)] * 3
        for _ in range(5):
            producer.send(TOPIC, b"fire and forget")
        await producer.flush()
        await until(lambda: "nobody looked" in caplog.text)
        kept = producer.send(TOPIC, b"looked at later")
        await producer.flush()
        assert isinstance(kept.exception(), BrokerError)
        producer.send(TOPIC, b"called back").add_done_callback(lambda delivery: None)
        await producer.flush()
        del kept
    lines = [each.getMessage() for each in caplog.records if "nobody looked" in each.getMessage()]
    assert len(lines) == len(set(lines)) and all(line.startswith("[lonely] ") for line in lines)
    assert sum(int(line.split()[1]) for line in lines) == 5 and "INVALID_RECORD" in lines[0]


async def test_many_failures_that_nobody_looks_at_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedTopic() as topic, producer_of(topic, batch_size=0) as producer:
        await send_all(producer, 1)
        topic.script = [answer_with(ErrorCode.INVALID_RECORD)] * 100
        for _ in range(100):
            producer.send(TOPIC, b"fire and forget")
        await producer.flush()
    lines = [each.getMessage() for each in caplog.records if "not delivered" in each.getMessage()]
    assert len(lines) == MOST_LINES + 1
    assert f"{100 - MOST_LINES} more records in {100 - MOST_LINES} batches" in lines[-1]


async def test_an_answer_that_trips_us_up_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug where answers are taken fails the records at once and is logged; the producer goes on."""

    def trip(*arguments: Any) -> bool:
        raise ZeroDivisionError("a bug of ours")

    async with ScriptedTopic(brokers=2) as topic, producer_of(topic) as producer:
        await send_all(producer, 1)
        monkeypatch.setattr(producer._engine._network.metadata, "learn_leader", trip)
        topic.script = [moved_to(2, epoch=1)]
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(
                ClientError, match=r"answer of .* failed: ZeroDivisionError.* may have been written"
            ):
                await producer.send(TOPIC, b"bad")
            assert "a bug of ours" in caplog.text and "Traceback" in caplog.text
            monkeypatch.undo()
            assert (await producer.send(TOPIC, b"good")).offset == 1
        assert producer.counters()["buffer_bytes"] == 0
    assert topic.values() == [b"0", b"good"]
