"""Followers fetch: one task and one connection for each broker that leads partitions which are followed here.

A `LeaderFetcher` sends one Fetch request after the other. Each names what changed in its session
(`leader_session.py`), and waits at the leader until there are records. What an answer says is decided by the
follower of each partition (`follower.py`); its records are written as they came. Small answers are written by
the event loop, as produced batches are; large ones, and truncations, by a thread.

A partition belongs to at most one fetcher. `Fetchers.unfollow` returns when no answer of the old leader is
being written any more: only then may the partition get another role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from klamm.client.errors import ClientError
from klamm.client.network.connection import BrokerConnection
from klamm.model.errors import KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from klamm.replication.follower import Action, Do, FetchPosition
from klamm.replication.leader_session import Key, LeaderSession, NextRequest

logger = logging.getLogger("klamm.replication")

WRITTEN_AT_ONCE_BYTES = 128 * 1024
"""Answers up to this size are written by the event loop: it takes less time than waking a thread."""

RECONNECT_PAUSE_S = 0.05
"""Before the next attempt to reach a leader; the connection pool makes the pause longer by itself."""


class FollowedPartition(Protocol):
    """What a fetcher does to a partition."""

    @property
    def key(self) -> Key: ...

    def next_fetch(self) -> FetchPosition | None: ...

    def on_fetched(self, asked: FetchPosition, data: PartitionData) -> Action:
        """Decide what to do with an answer."""

    def write_fetched(self, action: Action, data: PartitionData) -> None:
        """Do it to the log; runs in a thread if it is large."""

    def settle_fetched(self, action: Action, data: PartitionData) -> None:
        """Take over the leader's high watermark and log start, once the log is written."""


class FetchSettings(NamedTuple):
    node_id: int
    broker_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    pause_s: float
    """How long a partition is left out after an error."""


Connect = Callable[[int], Awaitable[BrokerConnection]]
Settings = Callable[[], FetchSettings]
RunInThread = Callable[[Callable[[], None]], Awaitable[None]]

Written = list[tuple[FollowedPartition, Action, PartitionData]]


class LeaderFetcher:
    """Fetches the partitions that one broker leads."""

    def __init__(
        self, leader_id: int, connect: Connect, settings: Settings, run_in_thread: RunInThread
    ) -> None:
        self._leader_id = leader_id
        self._connect = connect
        self._settings = settings
        self._run_in_thread = run_in_thread
        self._session = LeaderSession()
        self._partitions: dict[Key, FollowedPartition] = {}
        self._has_work = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        """Pending while an answer is being written by a thread."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"klamm-fetch-from-{leader_id}")

    def add(self, partitions: Iterable[FollowedPartition]) -> None:
        for partition in partitions:
            self._partitions[partition.key] = partition
            self._session.add(partition.key, partition)
        self._has_work.set()

    async def remove(self, partitions: Iterable[FollowedPartition]) -> None:
        """Returns when nothing of these partitions is being written any more."""
        for partition in partitions:
            if self._partitions.get(partition.key) is partition:
                del self._partitions[partition.key]
                self._session.remove(partition.key)
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _run(self) -> None:
        last_problem = ""
        while True:
            if not self._partitions:
                self._has_work.clear()
                await self._has_work.wait()
            try:
                connection = await self._connect(self._leader_id)
                await self._fetch_until_it_fails(connection)
            except (ClientError, KafkaError) as error:
                self._session.on_failure()
                if str(error) != last_problem:
                    last_problem = str(error)
                    logger.warning("cannot fetch from broker %d: %s", self._leader_id, error)
                await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _fetch_until_it_fails(self, connection: BrokerConnection) -> None:
        version = connection.version(ApiKey.FETCH)
        while self._partitions:
            settings = self._settings()
            asked = self._session.next_request()
            answer: FetchResponse = await connection.send(_request(settings, asked), version)
            if self._session.on_answer(answer.error_code, answer.session_id):
                await self._take(answer, settings.pause_s)

    async def _take(self, answer: FetchResponse, pause_s: float) -> None:
        to_write: Written = []
        needs_thread = False
        byte_count = 0
        for topic in answer.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                partition, asked = self._partitions.get(key), self._session.position(key)
                if partition is None or asked is None:
                    continue
                action = partition.on_fetched(asked, data)
                if action.do in _WRITES:
                    to_write.append((partition, action, data))
                    needs_thread = needs_thread or action.do is not Do.APPEND
                    byte_count += len(data.records) if data.records else 0
                elif action.do is Do.RETRY_LATER:
                    self._pause(partition, pause_s)
                elif action.do is Do.WAIT_FOR_EPOCH:
                    self._session.remove(key)
        if needs_thread or byte_count > WRITTEN_AT_ONCE_BYTES:
            failed = await self._write_in_thread(to_write)
        else:
            failed = _write(to_write)
        for partition, action, data in to_write:
            if partition.key in failed:
                self._pause(partition, pause_s)
            elif self._partitions.get(partition.key) is partition:
                partition.settle_fetched(action, data)
                self._session.touch((partition.key,))

    async def _write_in_thread(self, to_write: Written) -> set[Key]:
        """As `_write`. It is finished even if this task is cancelled meanwhile."""
        failed: set[Key] = set()

        async def write() -> None:
            try:
                await self._run_in_thread(lambda: failed.update(_write(to_write)))
            finally:
                self._writing = None

        self._writing = asyncio.ensure_future(write())
        await asyncio.shield(self._writing)
        return failed

    def _pause(self, partition: FollowedPartition, pause_s: float) -> None:
        """Leave a partition out of the next requests."""
        self._session.remove(partition.key)
        asyncio.get_running_loop().call_later(pause_s, self._resume, partition)

    def _resume(self, partition: FollowedPartition) -> None:
        if self._partitions.get(partition.key) is partition:
            self._session.add(partition.key, partition)


_WRITES = (Do.APPEND, Do.TRUNCATE, Do.START_AT)


def _write(to_write: Written) -> set[Key]:
    """Change the logs; returns the partitions whose log could not be changed."""
    failed: set[Key] = set()
    for partition, action, data in to_write:
        try:
            partition.write_fetched(action, data)
        except (KafkaError, OSError) as error:
            logger.error("what was fetched cannot be written: %s", error)
            failed.add(partition.key)
    return failed


def _request(settings: FetchSettings, asked: NextRequest) -> FetchRequest:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, index), position in asked.positions.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=position.current_leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=settings.partition_max_bytes,
            )
        )
    forgotten: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in asked.forgotten:
        forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=settings.node_id, replica_epoch=settings.broker_epoch),
        max_wait_ms=settings.max_wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=settings.max_bytes,
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )


class Fetchers:
    """All fetchers of a broker, by the broker that they fetch from."""

    def __init__(self, connect: Connect, settings: Settings, run_in_thread: RunInThread) -> None:
        self._connect = connect
        self._settings = settings
        self._run_in_thread = run_in_thread
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._leaders: dict[FollowedPartition, int] = {}

    def follow(self, leader_id: int, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these partitions, which nobody fetches now, from `leader_id`."""
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = LeaderFetcher(
                leader_id, self._connect, self._settings, self._run_in_thread
            )
        chosen = list(partitions)
        for partition in chosen:
            assert partition not in self._leaders, f"{partition.key} is fetched already"
            self._leaders[partition] = leader_id
        fetcher.add(chosen)

    async def unfollow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Stop fetching these partitions; returns when nothing of them is being written any more."""
        by_leader: dict[int, list[FollowedPartition]] = {}
        for partition in partitions:
            leader_id = self._leaders.pop(partition, None)
            if leader_id is not None:
                by_leader.setdefault(leader_id, []).append(partition)
        for leader_id, chosen in by_leader.items():
            await self._fetchers[leader_id].remove(chosen)

    async def shut_down(self) -> None:
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        self._fetchers.clear()
        self._leaders.clear()
