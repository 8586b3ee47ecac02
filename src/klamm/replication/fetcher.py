"""A fetcher copies partitions from the broker that leads them: one task, one connection.

A `LeaderFetcher` sends one Fetch request after the other. Each names what changed in its session
(`leader_session.py`), and waits at the leader until there are records. When partitions are added meanwhile, a
second request follows at once, upon which the leader answers the first. What an answer says is decided by the
follower of each partition (`follower.py`); its records are written as they came, by the event loop or by a
thread (`fetched_writes.py`).

Invariants:
* `until_written` returns when what was fetched of a released partition is written and settled: only then may
  the partition get another role.
* No error ends a fetcher: it pauses, and begins anew. A partition with an error is left out for a pause; the
  others go on. So is one that is throttled, until its rate allows more.
* While there is nothing to fetch, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

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
from klamm.replication.fetched_writes import FetchedWrite, FetchedWriter, succeeds
from klamm.replication.followed import FollowedPartition
from klamm.replication.follower import Do
from klamm.replication.leader_session import INITIAL_EPOCH, Key, LeaderSession, NextRequest

logger = logging.getLogger("klamm.replication")

RECONNECT_PAUSE_S = 0.05
"""Before the next attempt to reach a leader; the connection pool makes the pause longer by itself."""

FIRST_ERROR_PAUSE_S = 0.02
"""How long a partition is left out after the first of several errors in a row; the pauses double up to
`FetchSettings.pause_s`. A leader may hear of its role a moment after a follower. While the follower waits, so
do all writes with acks=all."""

MOST_IN_FLIGHT = 2
"""Requests that may be under way on a connection: one that waits for records, and one that makes the leader
answer it."""


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


Settings = Callable[[], FetchSettings]


class LeaderFetcher:
    """Fetches partitions that one broker leads, over one connection."""

    def __init__(
        self,
        leader_id: int,
        lane: int,
        connect: Callable[[], Awaitable[BrokerConnection]],
        settings: Settings,
        writer: FetchedWriter,
        on_fetched: Callable[[LeaderFetcher, FollowedPartition, PartitionData], None],
    ) -> None:
        """`on_fetched` is called when an answer is written and settled, and nothing else is under way. It may
        release the partition."""
        self.leader_id = leader_id
        self.lane = lane
        self._connect = connect
        self._settings = settings
        self._writer = writer
        self._on_fetched = on_fetched
        self._session = LeaderSession()
        self._partitions: dict[Key, FollowedPartition] = {}
        self._has_work = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._in_flight: deque[tuple[NextRequest, asyncio.Future[FetchResponse]]] = deque()
        self._last_problem = ""
        self._error_pauses: dict[Key, float] = {}
        """How long each partition that had an error is left out after the next one."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"klamm-fetch-from-{leader_id}-{lane}"
        )

    def __len__(self) -> int:
        return len(self._partitions)

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

    def release(self, partition: FollowedPartition) -> None:
        """Fetch nothing more of this partition. What was fetched of it may still be being written."""
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]
            self._error_pauses.pop(partition.key, None)
            self._session.remove(partition.key)

    async def until_written(self) -> None:
        """Returns when what was fetched of partitions that are released is written and settled."""
        await self._writer.until_written()

    async def stop(self) -> None:
        self._partitions.clear()  # so that no pause ends in a request
        self._connection = None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._writer.until_written()

    async def _run(self) -> None:
        while True:
            if not len(self._session):
                self._connection = None  # it has the memory of the last answer
                self._has_work.clear()
                await self._has_work.wait()
            try:
                self._connection = await self._connect()
                await self._fetch(self._connection)
            except (ClientError, KafkaError) as error:
                if str(error) != self._last_problem:
                    self._last_problem = str(error)
                    logger.warning("cannot fetch from broker %d: %s", self.leader_id, error)
                await self._begin_anew()
            except Exception:
                logger.exception("cannot fetch from broker %d", self.leader_id)
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
        writes: list[FetchedWrite] = []
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
                    writes.append(FetchedWrite(partition, action, data))
                elif action.do is Do.RETRY_LATER:
                    self._pause(partition, self._error_pause_s(key, pause_s))
                elif action.do is Do.WAIT_FOR_EPOCH:
                    self._session.remove(key)
                else:
                    # The leader would send the same again. The next request names where the partition is
                    # now, or forgets it.
                    self._session.touch((key,))
        await self._writer.write(writes, lambda piece, failed: self._settle(piece, failed, pause_s))

    def _settle(self, writes: Sequence[FetchedWrite], failed: set[Key], pause_s: float) -> None:
        """The logs are written, also of partitions that were removed meanwhile."""
        for write in writes:
            partition, data = write.partition, write.data
            is_fetched = self._partitions.get(partition.key) is partition
            if partition.key not in failed and not succeeds(partition.settle_fetched, write, "settled"):
                failed.add(partition.key)
            if is_fetched and partition.key in failed:
                self._pause(partition, pause_s)
            elif is_fetched and partition.is_throttled_follower and (throttled_s := partition.pause_s(data)):
                self._pause(partition, throttled_s)
            elif is_fetched:
                self._session.touch((partition.key,))
                if not self._in_flight:
                    self._on_fetched(self, partition, data)

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
