"""Followers fetch: one task and one connection for each broker that leads partitions which are followed here.

A `LeaderFetcher` sends one Fetch request after the other. Each names what changed in its session
(`leader_session.py`), and waits at the leader until there are records. When partitions are added meanwhile, a
second request follows at once, upon which the leader answers the first. What an answer says is decided by the
follower of each partition (`follower.py`); its records are written as they came. Small answers are written by
the event loop, as produced batches are; large ones, and truncations, by a thread.

Invariants:
* A partition belongs to at most one fetcher. `Fetchers.unfollow` returns when what was fetched of it is
  written and settled: only then may the partition get another role.
* No error ends a fetcher: it pauses, and begins anew. A partition with an error is left out for a pause; the
  others go on. So is one that is throttled, until its rate allows more.
* While there is nothing to fetch, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from klamm.client.errors import BrokerError, ClientError
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
from klamm.replication.leader_session import INITIAL_EPOCH, Key, LeaderSession, NextRequest

logger = logging.getLogger("klamm.replication")

WRITTEN_AT_ONCE_BYTES = 1024 * 1024
"""Answers up to this size are written by the event loop, as produced batches are: waking a thread takes more
time, and every acknowledgement with acks=all waits for it. Measured under load with batches of 400 KB: a
seventh less CPU time of the brokers than with threads from 128 KB on."""

RECONNECT_PAUSE_S = 0.05
"""Before the next attempt to reach a leader; the connection pool makes the pause longer by itself."""

FIRST_ERROR_PAUSE_S = 0.02
"""How long a partition is left out after the first of several errors in a row; the pauses double up to
`FetchSettings.pause_s`. A leader may hear of its role a moment after a follower. While the follower waits, so
do all writes with acks=all."""

MOST_IN_FLIGHT = 2
"""Requests that may be under way on a connection: one that waits for records, and one that makes the leader
answer it."""


class FollowedPartition(Protocol):
    """What a fetcher does to a partition."""

    @property
    def key(self) -> Key: ...

    @property
    def writes_slowly(self) -> bool:
        """True if a thread is to write what is fetched, however little it is."""

    @property
    def is_throttled_follower(self) -> bool:
        """True if `pause_s` is to be asked after each answer."""

    def pause_s(self, data: PartitionData) -> float:
        """How long nothing is fetched after this answer, because replication is throttled."""

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
    """How long a partition is left out after an error, at most."""
    timeout_s: float
    """How long a leader may take to answer before the connection counts as dead."""


Connect = Callable[[int], Awaitable[BrokerConnection]]
Settings = Callable[[], FetchSettings]
RunInThread = Callable[[Callable[[], None]], Awaitable[None]]

Writes = list[tuple[FollowedPartition, Action, PartitionData]]


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
        self._connection: BrokerConnection | None = None
        self._in_flight: deque[tuple[NextRequest, asyncio.Future[FetchResponse]]] = deque()
        self._last_problem = ""
        self._error_pauses: dict[Key, float] = {}
        """How long each partition that had an error is left out after the next one."""
        self._writing: asyncio.Future[None] | None = None
        """Pending while an answer is being written by a thread."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"klamm-fetch-from-{leader_id}")

    def add(self, partitions: Iterable[FollowedPartition]) -> None:
        for partition in partitions:
            self._partitions[partition.key] = partition
            self._session.add(partition.key, partition)
        self._ask_soon()

    def _ask_soon(self) -> None:
        """Partitions were added: do not let them wait until a request that waits for records is answered."""
        self._has_work.set()
        connection = self._connection
        if (
            connection is not None
            and 0 < len(self._in_flight) < MOST_IN_FLIGHT
            and self._session.may_ask_ahead
            and not connection.closed
        ):
            self._send(connection)

    async def remove(self, partitions: Iterable[FollowedPartition]) -> None:
        """Returns when what was fetched of these partitions is written and settled."""
        for partition in partitions:
            if self._partitions.get(partition.key) is partition:
                del self._partitions[partition.key]
                self._error_pauses.pop(partition.key, None)
                self._session.remove(partition.key)
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def stop(self) -> None:
        self._partitions.clear()  # so that no pause ends in a request
        self._connection = None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _run(self) -> None:
        while True:
            if not len(self._session):
                self._has_work.clear()
                await self._has_work.wait()
            try:
                self._connection = await self._connect(self._leader_id)
                await self._fetch(self._connection)
            except (ClientError, KafkaError) as error:
                if str(error) != self._last_problem:
                    self._last_problem = str(error)
                    logger.warning("cannot fetch from broker %d: %s", self._leader_id, error)
                await self._begin_anew()
            except Exception:
                logger.exception("cannot fetch from broker %d", self._leader_id)
                await self._begin_anew()

    async def _begin_anew(self) -> None:
        self._connection = None
        for _, answer in self._in_flight:
            answer.cancel()
        self._in_flight.clear()
        self._session.on_failure()
        await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _fetch(self, connection: BrokerConnection) -> None:
        """Fetch until there is nothing to fetch, or an error is raised."""
        while len(self._session) or self._in_flight:
            if not self._in_flight:
                self._send(connection)
            await self._take_answer()

    async def _take_answer(self) -> None:
        """Keeps nothing of the answer, so that the next one can be received into the same memory."""
        asked, answering = self._in_flight[0]
        answer = await answering
        self._in_flight.popleft()
        if self._session.on_answer(asked, answer.error_code, answer.session_id):
            self._last_problem = ""
            await self._take(asked, answer, self._settings().pause_s)
        elif asked.epoch == INITIAL_EPOCH:
            raise BrokerError.of(answer.error_code, "a new fetch session")

    def _send(self, connection: BrokerConnection) -> None:
        asked = self._session.next_request()
        settings = self._settings()
        request = _request(settings, asked)
        answering = connection.send(request, connection.version(ApiKey.FETCH), settings.timeout_s)
        answering.add_done_callback(_look_at_error)
        self._in_flight.append((asked, answering))

    async def _take(self, asked: NextRequest, answer: FetchResponse, pause_s: float) -> None:
        writes: Writes = []
        needs_thread = False
        byte_count = 0
        for topic in answer.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                partition, position = self._partitions.get(key), self._session.position(key, asked)
                if partition is None or position is None:
                    continue
                action = partition.on_fetched(position, data)
                if action.do is not Do.RETRY_LATER:
                    self._error_pauses.pop(key, None)
                if action.do in _WRITES:
                    writes.append((partition, action, data))
                    needs_thread = needs_thread or action.do is not Do.APPEND or partition.writes_slowly
                    byte_count += len(data.records) if data.records else 0
                elif action.do is Do.RETRY_LATER:
                    self._pause(partition, self._error_pause_s(key, pause_s))
                elif action.do is Do.WAIT_FOR_EPOCH:
                    self._session.remove(key)
                else:
                    # The leader would send the same again. The next request names where the partition is
                    # now, or forgets it.
                    self._session.touch((key,))
        if needs_thread or byte_count > WRITTEN_AT_ONCE_BYTES:
            self._writing = asyncio.ensure_future(self._write_in_thread(writes, pause_s))
            # It is finished even if this task is cancelled meanwhile.
            await asyncio.shield(self._writing)
        else:
            self._settle(writes, _write(writes), pause_s)

    async def _write_in_thread(self, writes: Writes, pause_s: float) -> None:
        failed = {partition.key for partition, _, _ in writes}
        try:
            await self._run_in_thread(lambda: failed.intersection_update(_write(writes)))
        except Exception:
            logger.exception("what was fetched from broker %d cannot be written", self._leader_id)
        finally:
            self._settle(writes, failed, pause_s)
            self._writing = None

    def _settle(self, writes: Writes, failed: set[Key], pause_s: float) -> None:
        """The logs are written, also of partitions that were removed meanwhile."""
        for partition, action, data in writes:
            is_fetched = self._partitions.get(partition.key) is partition
            if partition.key not in failed:
                try:
                    partition.settle_fetched(action, data)
                except (KafkaError, OSError) as error:
                    logger.error("what was fetched cannot be settled: %s", error)
                    failed.add(partition.key)
            if is_fetched and partition.key in failed:
                self._pause(partition, pause_s)
            elif is_fetched and partition.is_throttled_follower and (throttled_s := partition.pause_s(data)):
                self._pause(partition, throttled_s)
            elif is_fetched:
                self._session.touch((partition.key,))

    def _error_pause_s(self, key: Key, longest_s: float) -> float:
        pause_s = min(self._error_pauses.get(key, FIRST_ERROR_PAUSE_S), longest_s)
        self._error_pauses[key] = 2 * pause_s
        return pause_s

    def _pause(self, partition: FollowedPartition, pause_s: float) -> None:
        """Leave a partition out of the next requests."""
        self._session.remove(partition.key)
        asyncio.get_running_loop().call_later(pause_s, self._resume, partition)

    def _resume(self, partition: FollowedPartition) -> None:
        if self._partitions.get(partition.key) is partition:
            self._session.add(partition.key, partition)
            self._ask_soon()


def _look_at_error(answering: asyncio.Future[FetchResponse]) -> None:
    """A request that nobody awaits any longer may fail without a word."""
    if not answering.cancelled():
        answering.exception()


_WRITES = (Do.APPEND, Do.TRUNCATE, Do.START_AT)


def _write(writes: Writes) -> set[Key]:
    """Change the logs; returns the partitions whose log could not be changed."""
    failed: set[Key] = set()
    for partition, action, data in writes:
        try:
            partition.write_fetched(action, data)
        except (KafkaError, OSError) as error:
            logger.error("what was fetched cannot be written: %s", error)
            failed.add(partition.key)
        except Exception:
            logger.exception("what was fetched of partition %s cannot be written", partition.key)
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

    def __contains__(self, partition: FollowedPartition) -> bool:
        """True if the partition is fetched."""
        return partition in self._leaders

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
