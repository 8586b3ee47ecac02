"""Fetchers, whose leaders and partitions are played by the test."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

from klamm.client.errors import ConnectionFailed
from klamm.client.network.connection import BrokerConnection
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from klamm.replication.fetcher import FetchSettings
from klamm.replication.fetchers import KEEPING_UP, Fetchers
from klamm.replication.follower import Action, Do, FetchPosition
from klamm.replication.leader_session import Key
from tests.waiting import until

LEADER = 1
SESSION_ID = 9
PARTITION_MAX_BYTES = 100_000
PAUSE_S = 0.001
TIMEOUT_S = 12.0


class Followed:
    """A partition that counts records, and does what the test says."""

    def __init__(self, name: bytes, leader_epoch: int = 1) -> None:
        self.key: Key = (name.ljust(16, b"."), 0)
        self.offset = 0
        self.leader_epoch = leader_epoch
        self.action: Do | None = None
        self.is_over = False
        self.writes_slowly = False
        self.is_throttled_follower = False
        self.throttled_s = 0.0
        self.done: list[str] = []
        self.write: Callable[[], None] = lambda: None

    def pause_s(self, data: PartitionData) -> float:
        return self.throttled_s

    def next_fetch(self) -> FetchPosition | None:
        return None if self.is_over else FetchPosition(self.offset, 0, self.leader_epoch, 0)

    def on_fetched(self, asked: FetchPosition, data: PartitionData) -> Action:
        if asked.current_leader_epoch != self.leader_epoch or asked.fetch_offset != self.offset:
            return Action(Do.DROP)
        if self.action is not None:
            return Action(self.action)
        return Action(Do.RETRY_LATER if data.error_code else Do.APPEND)

    def write_fetched(self, action: Action, data: PartitionData) -> None:
        self.write()
        self.done.append("written")
        self.offset += len(data.records or b"")

    def settle_fetched(self, action: Action, data: PartitionData) -> None:
        self.done.append("settled")


class Leader:
    """The other end of a connection: it keeps the requests, and answers when the test says so."""

    def __init__(self) -> None:
        self.closed = False
        self.requests: list[FetchRequest] = []
        self.timeouts: list[float] = []
        self.unanswered: list[asyncio.Future[FetchResponse]] = []

    def version(self, api_key: int) -> int:
        return 17

    def send(self, request: FetchRequest, version: int, timeout: float) -> asyncio.Future[FetchResponse]:
        self.timeouts.append(timeout)
        future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.requests.append(request)
        self.unanswered.append(future)
        return future

    async def until_asked(self, count: int) -> FetchRequest:
        await until(lambda: len(self.requests) >= count, f"request {count} has come")
        return self.requests[count - 1]

    def answer(
        self,
        *partitions: tuple[Followed, bytes | memoryview | ErrorCode],
        high_watermark: int = 0,
        **fields: Any,
    ) -> None:
        """Answer the oldest request."""
        topics = []
        for partition, content in partitions:
            data = PartitionData(partition_index=0, high_watermark=high_watermark)
            if isinstance(content, ErrorCode):
                data.error_code = content
            else:
                data.records = content
            topics.append(FetchableTopicResponse(topic_id=partition.key[0], partitions=[data]))
        fields.setdefault("session_id", SESSION_ID)
        self.unanswered.pop(0).set_result(FetchResponse(responses=topics, **fields))

    def fail(self) -> None:
        for future in self.unanswered:
            future.set_exception(ConnectionFailed("lost"))
        self.unanswered = []
        self.closed = True


class Scene:
    """The fetchers, and a leader at the other end of each lane."""

    def __init__(self) -> None:
        self.leaders = [Leader()]
        """Of the first lane, one for each connection."""
        self.behind: dict[int, Leader] = {}
        """Of the other lanes."""
        self.failures: list[Exception] = []
        """What the next attempts to connect end in."""
        self.attempts = 0
        self.settings = FetchSettings(2, 7, 500, 1, 1_000_000, PARTITION_MAX_BYTES, PAUSE_S, TIMEOUT_S)
        self.fetchers = Fetchers(self._connect, lambda: self.settings, asyncio.to_thread)

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    async def _connect(self, broker_id: int, lane: int) -> BrokerConnection:
        assert broker_id == LEADER
        if lane != KEEPING_UP:
            return cast(BrokerConnection, self.behind.setdefault(lane, Leader()))
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.leader.closed:
            self.leaders.append(Leader())
        return cast(BrokerConnection, self.leader)


def one_batch(size: int) -> bytes:
    """So many bytes that are one batch, by its length."""
    return struct.pack(">qi", 0, size - 12).ljust(size, b"x")


def named(request: FetchRequest) -> dict[bytes, int]:
    """The fetch offsets by topic."""
    return {topic.topic_id.rstrip(b"."): topic.partitions[0].fetch_offset for topic in request.topics}


def forgotten(request: FetchRequest) -> list[bytes]:
    return [topic.topic_id.rstrip(b".") for topic in request.forgotten_topics_data]


async def turns(count: int = 20) -> None:
    """Let everything happen that can happen."""
    for _ in range(count):
        await asyncio.sleep(0)
