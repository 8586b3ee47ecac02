"""One connection against a scripted broker: what goes wrong, and that everybody hears of it in time."""

from __future__ import annotations

import asyncio
import struct
import time
from functools import partial
from typing import Any

import pytest

from klamm.client.counters import ClientCounters
from klamm.client.errors import ClientError, ConnectionFailed, NotKafka, TimedOut, UnsupportedRequest
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.connection import MAX_IN_FLIGHT_REQUESTS, BrokerConnection
from klamm.client.network.opening import ConnectionSettings, open_connection
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.headers import encode_request_frame, encode_response_frame
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.messages.k01_fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from klamm.protocol.messages.k01_fetch import PartitionData as FetchedPartition
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from tests.client.network.fake_broker import HANG_UP, SILENCE, FakeBroker
from tests.waiting import until


async def connect(
    broker: FakeBroker,
    *,
    setup_seconds: float = 30.0,
    request_seconds: float = 30.0,
    counters: ClientCounters | None = None,
) -> BrokerConnection:
    settings = ConnectionSettings("test", setup_seconds, request_seconds)
    address = BrokerAddress(broker.node_id, "127.0.0.1", broker.port)
    return await open_connection(address, settings, counters or ClientCounters())


async def close(*connections: BrokerConnection) -> None:
    for connection in connections:
        connection.close()
        await connection.gone


def ask(connection: BrokerConnection, timeout: float | None = None) -> asyncio.Future[Any]:
    return connection.send(ListGroupsRequest(), connection.version(ApiKey.LIST_GROUPS), timeout)


async def test_a_request_and_its_answer() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse(error_code=7)
        counters = ClientCounters()
        connection = await connect(broker, counters=counters)
        assert (await ask(connection)).error_code == 7
        assert connection.in_flight == 0
        assert (counters.requests, counters.connections_opened, counters.requests_failed) == (2, 1, 0)
        assert counters.bytes_in > 0 and counters.bytes_out > 0
        await close(connection)


async def test_many_requests_under_way_are_answered_in_order() -> None:
    async with FakeBroker() as broker:
        numbers = iter(range(1000))
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse(
            error_code=next(numbers)
        )
        connection = await connect(broker)
        answers = await asyncio.gather(*(ask(connection) for _ in range(500)))
        assert [each.error_code for each in answers] == list(range(500))
        await close(connection)


async def test_a_fetch_of_many_megabytes_is_a_slice_of_what_was_received() -> None:
    records = bytes(range(256)) * (40 * 4096)
    fetched = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic_id=b"t" * 16, partitions=[FetchedPartition(partition_index=0, records=records)]
            )
        ]
    )
    async with FakeBroker() as broker:
        broker.answers[ApiKey.FETCH] = lambda request, version: fetched
        connection = await connect(broker)
        answer = await connection.send(FetchRequest(), connection.version(ApiKey.FETCH))
        got = answer.responses[0].partitions[0].records
        assert isinstance(got, memoryview)
        assert got == records
        assert len(got.obj) < len(records) + 200, "the buffer holds this frame and nothing else"
        await close(connection)


async def test_both_sides_versions_are_respected() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(
            METADATA=(0, 5), FETCH=(0, 99), PRODUCE=None, LIST_GROUPS=(9, 12)
        )
        connection = await connect(broker)
        assert connection.version(ApiKey.METADATA) == 5
        assert connection.version(ApiKey.METADATA, max_version=4) == 4
        assert connection.version(ApiKey.FETCH) == 18
        assert connection.supports(ApiKey.FETCH, 13) and not connection.supports(ApiKey.METADATA, 6)
        for missing in (ApiKey.PRODUCE, ApiKey.LIST_GROUPS):
            with pytest.raises(UnsupportedRequest, match=rf"{missing.title} to broker 1 at 127.0.0.1:\d+"):
                connection.version(missing)
        with pytest.raises(UnsupportedRequest):
            connection.version(ApiKey.FETCH, max_version=3)
        await close(connection)


@pytest.mark.parametrize("known", [None, 0, 2])
async def test_a_broker_that_is_older_than_we_are(known: int | None) -> None:
    """It answers in version 0 with error 35, and names the versions it knows, if it is not that old."""

    def answer(request: object, version: int) -> ApiVersionsResponse:
        if version > (known or 0):
            keys = [] if known is None else [ApiVersion(api_key=18, min_version=0, max_version=known)]
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
        return broker.api_versions()

    async with FakeBroker() as broker:
        broker.answers[ApiKey.API_VERSIONS] = answer
        connection = await connect(broker)
        assert [each[1] for each in broker.requests] == [4, known or 0]
        assert connection.version(ApiKey.METADATA) == 13
        await close(connection)


# ---- broken answers


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        struct.pack(">i", 2 * 1024 * 1024),
        struct.pack(">i", 0),
        struct.pack(">ii", 4, 4711),
        struct.pack(">iih", 6, 1, 0),
        struct.pack(">iihi", 10, 1, 0, 2**31 - 1),
    ],
)
async def test_a_server_that_speaks_something_else(said: bytes) -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: said
        started = time.monotonic()
        with pytest.raises(NotKafka, match=r"127\.0\.0\.1") as caught:
            await connect(broker, setup_seconds=120.0, request_seconds=120.0)
        assert not caught.value.retriable
        assert time.monotonic() - started < 30, "it waited for a time-out"
        await until(lambda: broker.open_connections == 0, "it hung up")


async def test_a_server_that_hangs_up_without_a_word() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: HANG_UP
        with pytest.raises(NotKafka, match="without an answer") as caught:
            await connect(broker)
        assert caught.value.retriable, "a broker that stops does the same"


async def test_a_server_that_says_nothing() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: SILENCE
        with pytest.raises(ConnectionFailed, match=r"did not answer ApiVersions within 0\.3 s") as caught:
            await connect(broker, setup_seconds=0.3)
        assert caught.value.retriable
        await until(lambda: broker.open_connections == 0, "it hung up")


async def test_nobody_there() -> None:
    broker = FakeBroker()
    async with broker:
        pass
    with pytest.raises(
        ConnectionFailed, match=rf"no connection to broker 1 at 127.0.0.1:{broker.port}: it was ref"
    ):
        await connect(broker)


async def test_a_name_that_does_not_exist() -> None:
    settings = ConnectionSettings("test", 5.0, 5.0)
    with pytest.raises(ConnectionFailed, match=r"nowhere\.invalid"):
        await open_connection(BrokerAddress(-1, "nowhere.invalid", 9092), settings, ClientCounters())


def answer_to_another(request: object, version: int) -> bytes:
    return b"".join(encode_response_frame(ApiKey.LIST_GROUPS, version, 99, ListGroupsResponse()))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (answer_to_another, "carries the id 99"),
        (lambda request, version: struct.pack(">iib", 5, 2, 0), "cut short"),
        (lambda request, version: struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
    ],
)
async def test_an_answer_that_is_broken_ends_the_connection_for_all(answer: Any, problem: str) -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = answer
        connection = await connect(broker)
        waiting = [ask(connection) for _ in range(3)]
        for each in waiting:
            with pytest.raises(NotKafka, match=problem) as caught:
                await each
            assert "ListGroups" in str(caught.value)
            assert caught.value.retriable, "it spoke Kafka before"
        with pytest.raises(ConnectionFailed):
            ask(connection)
        await connection.gone


async def test_an_answer_that_nobody_asked_for() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: b"".join(
            encode_response_frame(ApiKey.LIST_GROUPS, version, 2, ListGroupsResponse()) * 2
        )
        connection = await connect(broker)
        await ask(connection)
        await connection.gone
        assert connection.closed


async def test_a_connection_that_is_cut_in_the_middle_of_an_answer() -> None:
    async with FakeBroker() as broker:
        half = struct.pack(">ii", 1_000_000, 2) + bytes(90_000)
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: half
        connection = await connect(broker)
        waiting = [ask(connection) for _ in range(3)]
        await until(lambda: broker.count(ApiKey.LIST_GROUPS) == 3, "the requests are there")
        broker.cut()
        for each in waiting:
            with pytest.raises(ConnectionFailed, match="ListGroups has no answer") as caught:
                await each
            assert not isinstance(caught.value, NotKafka)
            assert caught.value.retriable
        await connection.gone


async def test_a_listener_that_asks_for_a_login_hangs_up_at_the_first_request() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: HANG_UP
        connection = await connect(broker)
        with pytest.raises(ConnectionFailed, match="security_protocol"):
            await ask(connection)


# ---- time


async def test_a_request_that_is_not_answered_ends_the_connection() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker, request_seconds=0.05)
        first, second = ask(connection), ask(connection, timeout=30.0)
        with pytest.raises(TimedOut, match=r"ListGroups to broker 1 at .*:\d+ timed out after \d(\.\d+)? s"):
            await first
        with pytest.raises(ConnectionFailed, match=r"did not answer ListGroups within 0\.05 s"):
            await second
        await connection.gone
        await until(lambda: broker.open_connections == 0, "it hung up")


async def test_who_gives_up_early_leaves_the_connection_alone() -> None:
    release = asyncio.Event()

    async def late() -> ListGroupsResponse:
        await release.wait()
        return ListGroupsResponse(error_code=7)

    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: late()
        connection = await connect(broker)
        impatient, patient = ask(connection, timeout=0.02), ask(connection)
        with pytest.raises(TimedOut, match=r"timed out after \d(\.\d+)? s"):
            await impatient
        assert connection.is_suspect
        cancelled = ask(connection)
        cancelled.cancel()
        release.set()
        assert (await patient).error_code == 7
        await until(lambda: connection.in_flight == 0, "what nobody waits for is taken too")
        assert not connection.is_suspect and not connection.closed
        await close(connection)


async def test_one_timer_looks_after_all_deadlines() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        started = time.monotonic()
        waited: dict[float, float] = {}

        def ended(done: asyncio.Future[Any], seconds: float) -> None:
            assert isinstance(done.exception(), TimedOut)
            waited[seconds] = time.monotonic() - started

        for seconds in (0.08, 0.02, 0.05):
            ask(connection, seconds).add_done_callback(partial(ended, seconds=seconds))
        await until(lambda: len(waited) == 3, "all have ended")
        # A loop's clock may be a millisecond behind.
        assert all(seconds - 0.002 <= took for seconds, took in waited.items())
        assert not connection.closed
        await close(connection)


# ---- back-pressure


async def test_a_broker_that_does_not_read_is_not_written_to_without_end() -> None:
    async with FakeBroker() as broker:
        release = asyncio.Event()

        async def stall() -> object:
            await release.wait()
            return SILENCE

        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: stall()
        connection = await connect(broker)
        ask(connection).add_done_callback(lambda done: done.exception())
        produce = ProduceRequest(transactional_id="x" * 30_000)
        while connection.writable:
            connection.send_without_answer(produce, connection.version(ApiKey.PRODUCE))
        waiting = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        release.set()
        await waiting
        assert connection.writable
        await close(connection)


async def test_no_more_requests_are_under_way_than_brokers_take() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        for _ in range(MAX_IN_FLIGHT_REQUESTS):
            ask(connection).add_done_callback(lambda done: done.exception())
        assert not connection.writable
        waiting = asyncio.ensure_future(connection.drained())
        await asyncio.sleep(0)
        broker.cut()
        with pytest.raises(ConnectionFailed):
            await waiting


async def test_a_throttled_connection_pauses() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.METADATA] = lambda request, version: MetadataResponse(throttle_time_ms=60)
        counters = ClientCounters()
        connection = await connect(broker, counters=counters)
        await connection.send(MetadataRequest(), connection.version(ApiKey.METADATA))
        assert not connection.writable
        started = time.monotonic()
        await connection.drained()
        assert time.monotonic() - started > 0.03
        assert counters.throttled_seconds == pytest.approx(0.06)
        await close(connection)


class TickingLoop:
    """A loop whose clock goes on by `tick` with every look at it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: float) -> None:
        self._loop = loop
        self._tick = tick
        self._offset = 0.0

    def time(self) -> float:
        self._offset += self._tick
        return self._loop.time() + self._offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_a_pause_that_ends_while_it_is_looked_at_is_over() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        connection._loop = TickingLoop(asyncio.get_running_loop(), 0.05)  # type: ignore[assignment]
        connection._throttle(0.075, connection._loop.time())
        async with asyncio.timeout(10):
            await connection.drained()
        await close(connection)


# ---- the end


async def test_requests_without_an_answer_leave_before_the_connection_closes() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        for _ in range(100):
            connection.send_without_answer(ProduceRequest(acks=0), connection.version(ApiKey.PRODUCE))
        await close(connection)
        await until(lambda: broker.count(ApiKey.PRODUCE) == 100, "all arrived")


async def test_closing_tells_all_who_wait() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        waiting = ask(connection)
        await close(connection)
        with pytest.raises(ConnectionFailed, match="the client was closed"):
            await waiting
        with pytest.raises(ClientError):
            ask(connection)
        with pytest.raises(ClientError):
            connection.send_without_answer(ProduceRequest(), 9)


async def test_a_retired_connection_answers_what_is_under_way() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        connection = await connect(broker)
        waiting = ask(connection)
        connection.retire()
        assert not connection.closed
        await waiting
        await connection.gone
        assert connection.closed


async def test_delayed_requests_leave_in_order() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        connection = await connect(broker)
        before = ask(connection)
        connection.delay_requests()
        delayed = [ask(connection) for _ in range(3)]
        first = connection.send_first(MetadataRequest(), connection.version(ApiKey.METADATA), 5.0)
        await asyncio.gather(before, first)
        assert connection.in_flight == 3
        assert [each[0] for each in broker.requests[1:]] == [ApiKey.LIST_GROUPS, ApiKey.METADATA]
        connection.send_delayed()
        await asyncio.gather(*delayed)
        await close(connection)


async def test_delayed_requests_time_out_like_others() -> None:
    async with FakeBroker() as broker:
        connection = await connect(broker)
        connection.delay_requests()
        with pytest.raises(TimedOut):
            await ask(connection, timeout=0.02)
        await close(connection)


# ---- requests that other threads write


class BigProduce:
    """A prepared Produce of whatever size its records have."""

    api_key = ApiKey.PRODUCE.value
    version = 13

    def frame(self, correlation_id: int, records: bytearray, /) -> bytes:
        data = PartitionProduceData(index=0, records=records)
        request = ProduceRequest(topic_data=[TopicProduceData(topic_id=b"t" * 16, partition_data=[data])])
        return b"".join(encode_request_frame(self.api_key, self.version, correlation_id, "test", request))

    def read(self, correlation_id: int, frame: memoryview, /) -> None:
        return None


def write_here(connection: BrokerConnection, waiter: asyncio.Future[Any], size: int) -> bool:
    now = time.monotonic()
    with connection.lock:
        if not connection.may_send_here(now):
            return False
        connection.send_here(waiter, BigProduce(), bytearray(size), now)
        return True


async def test_another_thread_may_write_more_than_the_socket_takes() -> None:
    sizes = [10, 8_000_000, 20]
    async with FakeBroker() as broker:
        seen: list[int] = []

        def note(request: ProduceRequest, version: int) -> ProduceResponse:
            seen.append(len(request.topic_data[0].partition_data[0].records or b""))
            return ProduceResponse(throttle_time_ms=0)

        broker.answers[ApiKey.PRODUCE] = note
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse(error_code=7)
        connection = await connect(broker)
        connection.open_direct_socket()
        waiters: list[asyncio.Future[Any]] = []
        for size in sizes:
            waiters.append(asyncio.get_running_loop().create_future())
            assert await asyncio.to_thread(write_here, connection, waiters[-1], size)
            # What the loop writes meanwhile comes behind all of it.
            assert (await ask(connection)).error_code == 7
        await asyncio.gather(*waiters)
        assert seen == sizes
        assert connection.in_flight == 0
        await close(connection)


async def test_no_other_thread_writes_while_something_stands_against_it() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.PRODUCE] = lambda request, version: SILENCE
        connection = await connect(broker)
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        assert not write_here(connection, waiter, 1)  # nobody has opened the direct socket
        connection.open_direct_socket()
        connection.delay_requests()
        assert not write_here(connection, waiter, 1)
        connection.send_delayed()
        assert write_here(connection, waiter, 1)
        connection.close()
        assert not write_here(connection, waiter, 1)
        with pytest.raises(ConnectionFailed):
            await waiter
        await connection.gone


async def test_what_another_thread_wrote_has_a_deadline() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.PRODUCE] = lambda request, version: SILENCE
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        connection = await connect(broker, request_seconds=0.2)
        connection.open_direct_socket()
        idle: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        assert not write_here(connection, idle, 1)  # the timer is set for the greeting, whose time is longer
        await ask(connection)
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        assert await asyncio.to_thread(write_here, connection, waiter, 1)
        with pytest.raises(TimedOut):
            await waiter
        await connection.gone
