"""A client's network: against Klamm, and against scripted brokers for what Klamm never does."""

from __future__ import annotations

import asyncio
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    NoBrokerReachable,
    NotKafka,
    TimedOut,
    UnknownTopic,
)
from klamm.client.network.metadata import MetadataChange
from klamm.client.network.network import Network, Versioned
from klamm.client.network.opening import SOFTWARE_NAME, SOFTWARE_VERSION
from klamm.config.client_config import ClientConfig
from klamm.config.rows import ConfigError
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.testing import Broker
from tests.client.network.clean import network_to
from tests.client.network.fake_broker import HANG_UP, SILENCE, FakeBroker, topic_of
from tests.client.topics import unique
from tests.waiting import until


@pytest.fixture(scope="module")
def klamm_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


async def create(network: Network, name: str, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await network.call_any(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert answer.topics[0].error_code == 0


# ---- against Klamm


async def test_requests_topics_and_coordinators(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap) as network:
        name = unique("network")
        await create(network, name, partitions=3)
        topic = await network.topic(name, 10.0)
        assert [each.index for each in topic.partitions] == [0, 1, 2]
        node_id, epoch = network.metadata.leader(name, 2) or (-1, -1)
        assert epoch >= 0 and network.metadata.name_of(topic.topic_id) == name
        answer = await network.call(node_id, ListGroupsRequest(), lane="group")
        assert answer.error_code == 0
        assert await network.coordinator("some-group", 10.0) == node_id
        assert network.counters.connections_opened <= 3


async def test_a_topic_that_is_not_there(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap) as network:
        with pytest.raises(TimedOut, match="no-such-topic") as caught:
            await network.topic("no-such-topic", 0.5)
        assert isinstance(caught.value.cause, UnknownTopic)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(BrokerError, match="INVALID_TOPIC"):
            await network.topic("not/a/name", 10.0)


async def test_a_producer_creates_topics_by_asking_for_them(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap, kind="producer") as network:
        assert (await network.topic("made-by-asking", 10.0)).has_leader


async def test_changes_show_up(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap) as network:
        seen: list[MetadataChange] = []
        network.on_metadata(seen.append)
        name = unique("network")
        await create(network, name)
        first = await network.topic(name, 10.0)
        assert any(name in change.added for change in seen)

        grow = CreatePartitionsTopic(name=name, count=2, assignments=None)
        await network.call_any(CreatePartitionsRequest(topics=[grow], timeout_ms=10_000))
        await network.request_refresh()
        assert seen[-1].grown == {name}
        assert seen[-1].leaders == {TopicPartition(name, 1)}

        doomed = DeleteTopicState(name=name)
        await network.call_any(DeleteTopicsRequest(topics=[doomed], timeout_ms=10_000))
        await create(network, name)
        await network.request_refresh()
        assert seen[-1].recreated == {name}
        assert network.metadata.topics[name].topic_id != first.topic_id


async def test_all_topics_and_dropped_ones(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap) as network:
        name = unique("network")
        await create(network, name)
        network.want_all_topics()
        await network.request_refresh()
        assert name in network.metadata.topics
        network.want_all_topics(False)
        network.want_topics([name])
        network.drop_topics([name])
        assert name not in network.metadata.topics


async def test_topics_of_calls_are_in_the_metadata_while_a_call_needs_them(klamm_broker: Broker) -> None:
    async with network_to(klamm_broker.bootstrap) as network:
        asked, wanted = unique("network"), unique("network")
        await asyncio.gather(create(network, asked), create(network, wanted))
        with network.topics_of_call([asked, wanted]):
            with network.topics_of_call([asked, wanted]):
                await network.request_refresh()
            network.want_topics([wanted])
            network.drop_topics([asked])
            assert {asked, wanted} <= network.metadata.topics.keys(), "the outer call goes on"
        await network.request_refresh()
        assert asked not in network.metadata.topics and wanted in network.metadata.topics


async def test_a_restarted_broker_is_found_again() -> None:
    with Broker() as broker:
        async with network_to(broker.bootstrap) as network:
            await network.request_refresh()
            node_id = next(iter(network.metadata.brokers))
            await network.call(node_id, ListGroupsRequest())
            await asyncio.to_thread(broker.restart)

            async def ask() -> Any:
                return await network.call(node_id, ListGroupsRequest())

            assert (await network.retrying("listing groups", 20.0, ask)).error_code == 0


# ---- connections


async def test_all_who_want_a_connection_get_the_same() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        await network.request_refresh()
        assert broker.connections == 1, "the address that was given is broker 1, and its connection is kept"
        made = await asyncio.gather(*(network.connection(1, "fetch") for _ in range(20)))
        assert len(set(made)) == 1
        assert broker.connections == 2
        assert await network.connection(1) is not made[0], "another lane has a connection of its own"


async def test_a_fetch_that_waits_does_not_hold_up_the_other_lanes() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        await network.request_refresh()
        waiting = asyncio.ensure_future(network.call(1, ListGroupsRequest(), lane="fetch"))
        await network.request_refresh()
        waiting.cancel()


async def test_a_broker_that_cannot_be_reached_is_left_alone_ever_longer() -> None:
    async with FakeBroker() as broker:
        port = broker.port
    async with network_to(
        f"127.0.0.1:{port}", reconnect_backoff_ms=100, reconnect_backoff_max_ms=200
    ) as network:
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(ConnectionFailed):
                await network.call(-1, ListGroupsRequest())
        assert time.monotonic() - started >= (0.1 + 0.2) * 0.8
        with pytest.raises(TimedOut, match=r"the last cause was: .*it was refused"):
            await network.call(-1, ListGroupsRequest(), timeout=0.01)  # while it is left alone


async def test_connections_that_nobody_uses_are_closed() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, connections_max_idle_ms=50) as network:
        await network.request_refresh()
        assert broker.open_connections == 1
        await until(lambda: broker.open_connections == 0, "the connection is closed")
        await network.request_refresh()
        assert network.counters.connections_lost == 0


async def test_a_connection_with_a_request_under_way_is_not_idle() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, connections_max_idle_ms=20) as network:
        release = asyncio.Event()

        async def late() -> ListGroupsResponse:
            await release.wait()
            return ListGroupsResponse()

        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: late()
        waiting = asyncio.ensure_future(network.call(-1, ListGroupsRequest()))
        await until(lambda: broker.count(ApiKey.LIST_GROUPS) == 1, "the request is under way")
        asked_at = time.monotonic()
        await until(lambda: time.monotonic() - asked_at > 0.06, "longer than a connection may be idle")
        release.set()
        assert (await waiting).error_code == 0


async def test_a_broker_that_moved_is_left() -> None:
    async with FakeBroker(1) as old, FakeBroker(1) as new, network_to(old.bootstrap) as network:
        new.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse(error_code=5)
        await network.request_refresh()
        await network.connection(1, "fetch")
        old.answers[ApiKey.METADATA] = lambda request, version: old.metadata(brokers=[new])
        await network.request_refresh()
        await until(lambda: old.open_connections == 0, "the old place is left")
        assert (await network.call(1, ListGroupsRequest())).error_code == 5


async def test_a_broker_that_nobody_knows() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        with pytest.raises(ConnectionFailed, match="broker 7 is not in the metadata") as caught:
            await network.call(7, ListGroupsRequest())
        assert caught.value.retriable


async def test_a_request_that_depends_on_its_version() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(LIST_GROUPS=(0, 3))
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        built: list[int] = []

        def build(version: int) -> ListGroupsRequest:
            built.append(version)
            return ListGroupsRequest()

        await network.call(-1, Versioned(ListGroupsRequest, build))
        await network.call(-1, ListGroupsRequest(), max_version=2)
        assert built == [3]
        assert [each[1] for each in broker.requests if each[0] == ApiKey.LIST_GROUPS] == [3, 2]


# ---- any broker


async def test_another_broker_answers_when_one_does_not() -> None:
    async with FakeBroker(1) as dead, FakeBroker(2) as alive, network_to(dead.bootstrap) as network:
        dead.answers[ApiKey.METADATA] = lambda request, version: dead.metadata(brokers=[dead, alive])
        alive.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse(error_code=4)
        await network.request_refresh()
        await dead.stop()
        for _ in range(5):
            assert (await network.call_any(ListGroupsRequest())).error_code == 4


async def test_a_broker_that_hangs_is_asked_last() -> None:
    async with FakeBroker(1) as stuck, FakeBroker(2) as alive, network_to(stuck.bootstrap) as network:
        stuck.answers[ApiKey.METADATA] = lambda request, version: stuck.metadata(brokers=[stuck, alive])
        stuck.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        alive.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        await network.request_refresh()
        with pytest.raises(TimedOut):
            await network.call(1, ListGroupsRequest(), timeout=0.05)
        for _ in range(5):
            await network.call_any(ListGroupsRequest(), timeout=30.0)
        assert stuck.count(ApiKey.LIST_GROUPS) == 1


async def test_the_given_addresses_are_tried_again_when_all_known_brokers_are_gone() -> None:
    async with FakeBroker(1) as old, FakeBroker(2) as new:
        new.answers[ApiKey.METADATA] = lambda request, version: new.metadata(topic_of("t", [2]))
        async with network_to(old.bootstrap, new.bootstrap) as network:
            old.answers[ApiKey.METADATA] = lambda request, version: old.metadata()
            await network.connection(-1)
            await network.request_refresh()
            assert set(network.metadata.brokers) <= {1, 2}
            await old.stop()
            await network.request_refresh()
            assert set(network.metadata.brokers) == {2}


async def test_a_broker_that_sends_us_back_to_the_start() -> None:
    """KIP-1102: REBOOTSTRAP_REQUIRED."""
    async with FakeBroker(1) as start, FakeBroker(2) as astray, network_to(start.bootstrap) as network:
        start.answers[ApiKey.METADATA] = lambda request, version: start.metadata(brokers=[astray])
        await network.request_refresh()
        await network.connection(2)

        def lost(request: object, version: int) -> MetadataResponse:
            return MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)

        astray.answers[ApiKey.METADATA] = lost
        await network.request_refresh()
        assert (astray.count(ApiKey.METADATA), start.count(ApiKey.METADATA)) == (1, 2)


async def test_nobody_anywhere() -> None:
    async with FakeBroker() as one, FakeBroker() as other:
        addresses = one.bootstrap, other.bootstrap
    async with network_to(*addresses) as network:
        with pytest.raises(NoBrokerReachable) as caught:
            await network.call_any(ListGroupsRequest())
        assert all(address in str(caught.value) for address in addresses)
        with pytest.raises(TimedOut) as late:
            await network.topic("t", 0.3)
        assert isinstance(late.value.cause, NoBrokerReachable)
        assert all(address in str(late.value) for address in addresses)


async def test_a_server_that_is_no_broker_ends_the_waiting() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        started = time.monotonic()
        for attempt in (network.topic("t", 60.0), network.coordinator("g", 60.0), network.request_refresh()):
            with pytest.raises(NotKafka, match="HTTP"):
                await attempt
        assert time.monotonic() - started < 20


async def test_one_broker_among_strangers_is_enough() -> None:
    async with FakeBroker() as stranger, FakeBroker(2) as broker:
        stranger.answers[ApiKey.API_VERSIONS] = lambda request, version: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        broker.answers[ApiKey.METADATA] = lambda request, version: broker.metadata(topic_of("t", [2]))
        async with network_to(stranger.bootstrap, broker.bootstrap) as network:
            assert (await network.topic("t", 10.0)).has_leader


# ---- metadata


async def test_questions_are_asked_once_for_all_who_wait() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        await asyncio.gather(*(network.request_refresh() for _ in range(50)))
        assert broker.count(ApiKey.METADATA) == 1


async def test_questions_without_news_come_less_often() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=50) as network:
        started = time.monotonic()
        for _ in range(4):
            await network.request_refresh()
        # The first brings news; the three after it wait 0, 50 and 100 ms, give or take a fifth.
        assert time.monotonic() - started >= (0.05 + 0.1) * 0.8


async def test_a_topic_that_is_wanted_anew_is_asked_for_at_once() -> None:
    async with (
        FakeBroker() as broker,
        network_to(broker.bootstrap, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as network,
    ):
        await network.request_refresh()
        await network.request_refresh()
        broker.answers[ApiKey.METADATA] = lambda request, version: broker.metadata(topic_of("t", [1]))
        assert (await network.topic("t", 10.0)).name == "t"


async def test_who_asks_during_a_question_waits_for_the_next() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        release = asyncio.Event()

        async def late() -> Any:
            await release.wait()
            return broker.metadata()

        broker.answers[ApiKey.METADATA] = lambda request, version: late()
        first = network.request_refresh()
        await until(lambda: broker.count(ApiKey.METADATA) == 1, "the question is under way")
        second = network.request_refresh()
        release.set()
        await first
        assert not second.done()
        await second
        assert broker.count(ApiKey.METADATA) == 2


async def test_who_gives_up_does_not_disturb_the_others() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        gives_up, waits = network.request_refresh(), network.request_refresh()
        gives_up.cancel()
        await waits


async def test_old_metadata_is_asked_for_again() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, metadata_max_age_ms=30) as network:
        await network.request_refresh()
        await until(lambda: broker.count(ApiKey.METADATA) >= 3, "it was refreshed twice by itself")


async def test_a_refresh_that_fails_is_tried_again_for_those_who_wait() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:
        failures = iter([HANG_UP, HANG_UP])
        broker.answers[ApiKey.METADATA] = lambda request, version: next(failures, None) or broker.metadata()
        await network.request_refresh()
        assert broker.count(ApiKey.METADATA) == 3


async def test_a_topic_whose_leader_is_being_elected() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:
        leaders = iter([-1, -1])
        broker.answers[ApiKey.METADATA] = lambda request, version: broker.metadata(
            topic_of("t", [-1, next(leaders, 1)])
        )
        topic = await network.topic("t", 10.0)
        assert [each.leader for each in topic.partitions] == [-1, 1], "the one that is there is of use"
        broker.answers[ApiKey.METADATA] = lambda request, version: broker.metadata(topic_of("u", [-1, -1]))
        with pytest.raises(TimedOut, match="no partition has a leader"):
            await network.topic("u", 0.2)


async def test_a_broken_callback_does_not_end_the_refreshing() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:
        calls = iter([ZeroDivisionError("a bug")])

        def callback(change: MetadataChange) -> None:
            if (error := next(calls, None)) is not None:
                raise error

        network.on_metadata(callback)
        with pytest.raises(ZeroDivisionError):
            await network.request_refresh()
        await network.request_refresh()


# ---- coordinators


@pytest.mark.parametrize("newest", [3, 6])
async def test_finding_a_coordinator(newest: int) -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:
        errors = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])

        def find(request: Any, version: int) -> FindCoordinatorResponse:
            error = next(errors, ErrorCode.NONE)
            if version < 4:
                assert request.key == "g"
                return FindCoordinatorResponse(
                    error_code=error, node_id=9, host="127.0.0.1", port=broker.port
                )
            assert request.coordinator_keys == ["g"]
            found = Coordinator(key="g", error_code=error, node_id=9, host="127.0.0.1", port=broker.port)
            return FindCoordinatorResponse(coordinators=[found])

        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: broker.api_versions(
            FIND_COORDINATOR=(0, newest)
        )
        broker.answers[ApiKey.FIND_COORDINATOR] = find
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        assert await network.coordinator("g", 10.0) == 9
        assert await network.coordinator("g", 10.0) == 9
        assert broker.count(ApiKey.FIND_COORDINATOR) == 3, "it is remembered"
        assert (await network.call(9, ListGroupsRequest(), lane="group")).error_code == 0
        network.forget_coordinator("g")
        await network.coordinator("g", 10.0)
        assert broker.count(ApiKey.FIND_COORDINATOR) == 4


# ---- retrying


async def test_retrying_ends_with_the_last_cause() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:

        async def fail() -> None:
            raise BrokerError.of(ErrorCode.NOT_CONTROLLER, "making a topic")

        with pytest.raises(TimedOut, match=r"making topics timed out after \d(\.\d+)? s; .*NOT_CONTROLLER"):
            await network.retrying("making topics", 0.1, fail)
        assert network.counters.retries > 1

        async def refuse() -> None:
            raise BrokerError.of(ErrorCode.INVALID_PARTITIONS, "making a topic")

        with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
            await network.retrying("making topics", 10.0, refuse)


async def test_a_time_out_says_how_long_it_was_waited_for() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap, retry_backoff_ms=10) as network:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        inner: list[TimedOut] = []

        async def ask() -> None:
            try:
                await network.retrying("an inner call", 60.0, lambda: network.call(-1, ListGroupsRequest()))
            except TimedOut as error:
                inner.append(error)
                raise

        with pytest.raises(TimedOut) as outer:
            await network.retrying("an outer call", 0.2, ask)
        assert 0 < inner[0].seconds < 10, "the outer call had no more time"
        assert f"timed out after {inner[0].seconds:.2g} s" in str(inner[0])
        assert 0 < outer.value.seconds < 10


async def test_a_request_gives_up_before_the_call_around_it_and_says_who_was_silent() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        with pytest.raises(TimedOut) as caught:
            await network.retrying("counting groups", 0.1, lambda: network.call(-1, ListGroupsRequest()))
        assert re.search(r"counting groups timed out after \d(\.\d+)? s", str(caught.value))
        assert f"ListGroups to {broker.bootstrap}" in str(caught.value)
        # A task that was begun meanwhile is not bound by that deadline.
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: ListGroupsResponse()
        assert (await network.call(-1, ListGroupsRequest(), lane="later")).error_code == 0


async def test_a_silent_broker_is_named_when_a_topic_does_not_come() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        broker.answers[ApiKey.METADATA] = lambda request, version: SILENCE
        with pytest.raises(TimedOut, match=rf"{broker.bootstrap} has not answered Metadata"):
            await network.topic("t", 0.1)


# ---- the end


async def test_after_close_nothing_works() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        await network.request_refresh()
        broker.answers[ApiKey.LIST_GROUPS] = lambda request, version: SILENCE
        under_way = asyncio.ensure_future(network.call(1, ListGroupsRequest()))
        await until(lambda: broker.count(ApiKey.LIST_GROUPS) == 1, "the request is under way")
        await network.close()
        with pytest.raises(ConnectionFailed, match="the client was closed"):
            await under_way
        for attempt in (
            network.call(1, ListGroupsRequest()),
            network.call_any(ListGroupsRequest()),
            network.connection(1),
            network.coordinator("g", 5.0),
            network.topic("t", 5.0),
            network.start(),
            network.request_refresh(),
        ):
            with pytest.raises(ClientClosed):
                await attempt
        await network.close()


async def test_closing_while_it_connects() -> None:
    patient = {"socket_connection_setup_timeout_ms": 120_000}
    async with FakeBroker() as broker, network_to(broker.bootstrap, **patient) as network:
        broker.answers[ApiKey.API_VERSIONS] = lambda request, version: SILENCE
        waiting = [
            asyncio.ensure_future(each)
            for each in (
                network.call(-1, ListGroupsRequest()),
                network.request_refresh(),
                network.topic("t", 30.0),
            )
        ]
        await until(lambda: broker.open_connections > 0, "it connects")
        started = time.monotonic()
        await network.close()
        assert time.monotonic() - started < 30, "it does not wait until connecting has failed"
        for each in waiting:
            with pytest.raises(ClientError):
                await each


def test_brokers_are_told_the_version_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (SOFTWARE_NAME, SOFTWARE_VERSION)


async def test_lasting_trouble_is_told_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeBroker() as broker,
        network_to(
            broker.bootstrap, retry_backoff_ms=1, retry_backoff_max_ms=1, client_id="the-client"
        ) as network,
    ):
        failures = iter([HANG_UP] * 10)
        broker.answers[ApiKey.METADATA] = lambda request, version: next(failures, None) or broker.metadata()
        await network.request_refresh()
    told = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 3, "the second, the fourth and the eighth"
    assert all(each.getMessage().startswith("[the-client] metadata could not be fetched") for each in told)


def test_addresses_that_are_none() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Network(ClientConfig("admin", "localhost"))


async def test_metadata_request_asks_for_no_topics_when_none_is_wanted() -> None:
    async with FakeBroker() as broker, network_to(broker.bootstrap) as network:
        await network.request_refresh()
        (request,) = [each[2] for each in broker.requests if isinstance(each[2], MetadataRequest)]
        assert request.topics == []
        assert not request.allow_auto_topic_creation
