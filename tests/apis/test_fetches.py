from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.apis.fetches import Fetch, FetchOptions
from klamm.cluster.image import BrokerImage, Endpoint, PartitionImage
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.messages.k01_fetch import FetchResponse, PartitionData
from klamm.replication.fetch_sessions import FetchPosition, FetchSession, FetchSessions, PartitionKey
from klamm.replication.partition import Partition
from klamm.storage.log import WouldBlock
from tests.replication.partitions import append, commit, led_by, open_partition, position
from tests.replies import FakeReply

KEY: PartitionKey = ("orders", 0)
OTHER: PartitionKey = ("orders", 1)
FOLLOWER = 2


class Connection:
    files_left = 100
    listener_name = "PLAINTEXT"

    def on_close(self, callback: Callable[[], None]) -> None:
        """It stays open."""


class Partitions:
    """Two partitions, and a thread."""

    def __init__(self, directory: Path) -> None:
        self.by_key = {key: open_partition(directory, "orders", key[1]) for key in (KEY, OTHER)}
        self.moved_to: int | None = None
        self.looks = 0

    def get(self, topic: str, index: int) -> Partition:
        if self.moved_to is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader is elsewhere")
        return self.by_key[topic, index]

    async def run_in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        self.looks += 1
        return await asyncio.to_thread(work, *args)

    def has_watchers(self) -> bool:
        return any(each._watchers or each._log_end_watchers for each in self.by_key.values())


class Node:
    """A broker as a fetch sees it."""

    def __init__(self, directory: Path) -> None:
        self.partitions = Partitions(directory)
        self.fetch_sessions = FetchSessions(10, itertools.count(1).__next__)
        self.node_id = 1
        self.cluster = SimpleNamespace(image=None)

    def fetch(
        self,
        positions: Iterable[FetchPosition] = (position(KEY), position(OTHER)),
        *,
        min_bytes: int = 1,
        max_wait_ms: int = 60_000,
        replica_id: int = -1,
        version: int = 17,
        session: FetchSession | None = None,
    ) -> Fetch:
        options = FetchOptions(version, replica_id, 7, max_wait_ms, min_bytes, 1_000_000, False, "")
        if session is None:
            session = FetchSession(positions, replica_id=replica_id)
        return Fetch(self, Connection(), session, options)  # type: ignore[arg-type]


def park(fetch: Fetch) -> FakeReply:
    reply = FakeReply()
    assert fetch.start() is None
    fetch.answer_later(reply)
    return reply


async def answer_of(reply: FakeReply) -> FetchResponse:
    response = await asyncio.wait_for(reply.answer, 10)
    assert isinstance(response, FetchResponse)
    return response


def parts_of(response: Any) -> dict[int, PartitionData]:
    assert isinstance(response, FetchResponse)
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def byte_count(response: FetchResponse) -> int:
    return sum(len(part.records or b"") for part in parts_of(response).values())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_what_is_there_is_answered_at_once(node: Node) -> None:
    append(node.partitions.by_key[OTHER], b"news")
    parts = parts_of(node.fetch().start())
    assert parts[1].records and not parts[0].records
    assert not node.partitions.has_watchers()


async def test_a_fetch_that_may_not_wait_is_answered_at_once(node: Node) -> None:
    assert set(parts_of(node.fetch(max_wait_ms=0).start())) == {0, 1}
    assert set(parts_of(node.fetch(min_bytes=0).start())) == {0, 1}
    assert parts_of(node.fetch(()).start()) == {}


async def test_a_parked_fetch_is_woken_by_an_append(node: Node) -> None:
    reply = park(node.fetch())
    append(node.partitions.by_key[OTHER], b"news")
    assert byte_count(await answer_of(reply)) == node.partitions.by_key[OTHER].log.size_bytes
    assert not node.partitions.has_watchers()


async def test_many_appends_of_one_turn_are_one_look(node: Node) -> None:
    fetches = [node.fetch() for _ in range(3)]
    replies = [park(fetch) for fetch in fetches]
    for _ in range(100):
        append(node.partitions.by_key[KEY], b"news")
    assert node.fetch_sessions._woken == fetches
    for reply in replies:
        assert byte_count(await answer_of(reply)) == node.partitions.by_key[KEY].log.size_bytes


async def test_too_few_bytes_wake_nobody(node: Node) -> None:
    reply = park(node.fetch(min_bytes=10_000))
    append(node.partitions.by_key[KEY], b"x" * 4000)
    assert reply.is_open and not node.fetch_sessions._woken
    append(node.partitions.by_key[KEY], b"x" * 6000)
    await answer_of(reply)


async def test_every_byte_of_a_batch_counts(node: Node, tmp_path: Path) -> None:
    """The bytes that are announced must be the bytes that are read, or a fetch that has enough waits on."""
    example = open_partition(tmp_path, "example")
    append(example, b"x" * 1000)
    append(node.partitions.by_key[KEY], b"x" * 1000)
    min_bytes = 3 * example.log.size_bytes
    reply = park(node.fetch(min_bytes=min_bytes))
    append(node.partitions.by_key[KEY], b"x" * 1000)
    append(node.partitions.by_key[OTHER], b"x" * 1000)
    assert byte_count(await answer_of(reply)) == min_bytes


async def test_time_is_up(node: Node) -> None:
    response = await answer_of(park(node.fetch(max_wait_ms=10)))
    assert set(parts_of(response)) == {0, 1} and byte_count(response) == 0
    assert not node.partitions.has_watchers()


async def test_a_partition_that_goes_offline_is_told_at_once(node: Node) -> None:
    reply = park(node.fetch(min_bytes=10_000))
    node.partitions.by_key[KEY].take_offline()
    parts = parts_of(await answer_of(reply))
    assert parts[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_leader_that_moved_is_named_at_once(node: Node) -> None:
    reply = park(node.fetch(min_bytes=10_000))
    moved = PartitionImage((1, 2), (2,), 2, 5, 0)
    broker = BrokerImage(2, {"PLAINTEXT": Endpoint("there", 9093)})
    node.cluster.image = SimpleNamespace(
        topics={"orders": SimpleNamespace(partitions=(moved, moved))},
        brokers_at=lambda listener_name: [(broker, broker.endpoints[listener_name])],
    )
    node.partitions.moved_to = 2
    node.partitions.by_key[OTHER].notify_changed()
    response = await answer_of(reply)
    part = parts_of(response)[1]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader is not None
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 5)
    assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [(2, "there", 9093)]


async def test_a_change_that_is_no_news_is_waited_over(node: Node) -> None:
    reply = park(node.fetch())
    node.partitions.by_key[KEY].notify_changed()
    assert node.fetch_sessions._woken
    await asyncio.sleep(0)
    assert reply.is_open and not node.fetch_sessions._woken
    append(node.partitions.by_key[KEY], b"news")
    await answer_of(reply)


async def test_what_is_not_in_memory_is_answered_by_a_thread(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = park(node.fetch())

    def would_block(*_: object, **__: object) -> None:
        raise WouldBlock

    monkeypatch.setattr(node.fetch_sessions.newest_batches, "read", would_block)
    append(node.partitions.by_key[KEY], b"news")
    assert byte_count(await answer_of(parked)) > 0
    assert byte_count(await answer_of(park(node.fetch()))) > 0
    assert node.partitions.looks == 2


async def test_an_abandoned_fetch_leaves_nobody_watching(node: Node) -> None:
    reply = park(node.fetch())
    assert node.partitions.has_watchers()
    reply.drop()
    assert not node.partitions.has_watchers()
    append(node.partitions.by_key[KEY], b"unheard")
    assert not node.fetch_sessions._woken


async def test_a_follower_is_woken_by_the_log_end_and_a_consumer_by_the_high_watermark(node: Node) -> None:
    partition = node.partitions.by_key[KEY]
    partition.take_over(led_by(1, 1, FOLLOWER, epoch=1))
    follower = park(node.fetch([position(KEY)], replica_id=FOLLOWER))
    consumer = park(node.fetch([position(KEY)]))
    append(partition, b"news")
    answer = await answer_of(follower)
    assert not node.fetch_sessions._woken and consumer.is_open
    commit(partition, 1)
    assert byte_count(answer) == byte_count(await answer_of(consumer)) > 0


async def test_a_session_goes_on_listening_between_its_requests(node: Node) -> None:
    session = node.fetch_sessions.create(
        Connection(),
        [position(KEY), position(OTHER)],
        uses_topic_ids=False,
    )
    assert session is not None
    assert set(parts_of(node.fetch(session=session, max_wait_ms=0).start())) == {0, 1}
    append(node.partitions.by_key[OTHER], b"news")
    session.continue_with(1, (), ())
    assert set(parts_of(node.fetch(session=session).start())) == {1}
    session.continue_with(2, [position(OTHER, 1)], ())
    reply = park(node.fetch(session=session))
    append(node.partitions.by_key[KEY], b"news")
    assert set(parts_of(await answer_of(reply))) == {0}


async def test_the_next_request_of_a_session_ends_the_wait_of_the_one_before(node: Node) -> None:
    sessions = node.fetch_sessions
    session = sessions.create(Connection(), [position(KEY)], uses_topic_ids=False)
    assert session is not None
    assert set(parts_of(node.fetch(session=session, max_wait_ms=0).start())) == {0}
    sessions.resume(session.session_id, 1, (), (), uses_topic_ids=False)
    first = park(node.fetch(session=session))
    append(node.partitions.by_key[OTHER], b"news")
    sessions.resume(session.session_id, 2, [position(OTHER)], (), uses_topic_ids=False)
    assert parts_of(await answer_of(first)) == {}, "it has not asked for the other partition"
    assert set(parts_of(node.fetch(session=session).start())) == {1}
    sessions.resume(session.session_id, 3, [position(OTHER, 1)], (), uses_topic_ids=False)
    last = park(node.fetch(session=session))
    append(node.partitions.by_key[KEY], b"news")
    assert set(parts_of(await answer_of(last))) == {0}


async def test_a_fetch_that_is_over_is_freed_without_a_collection(node: Node) -> None:
    answered, dropped = node.fetch(), node.fetch()
    sessions = [id(answered.session), id(dropped.session)]
    replies = [park(answered), park(dropped)]
    replies[1].drop()
    append(node.partitions.by_key[KEY], b"v")
    await answer_of(replies[0])
    gc.disable()
    try:
        del answered, dropped, replies
        await asyncio.sleep(0)
        left = [each for each in gc.get_objects() if isinstance(each, FetchSession) and id(each) in sessions]
        assert not left
    finally:
        gc.enable()
