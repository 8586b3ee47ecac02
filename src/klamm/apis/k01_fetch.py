"""Fetch (key 1), versions 4 to 18.

Answers whole stored batches as file ranges, which the connection sends without reading them. With a session
(version 7) a request names only what changed, and an answer only what is new. A fetch that finds less than
min_bytes waits up to max_wait_ms. Data that the page cache lacks is fetched by a thread first.

Version 12 adds the diverging epoch, 13 names topics by id, 15 moves the replica id into a tag, 18 carries a
follower's high watermark. Followers arrive with replication: a request with a replica id of a broker is
answered like a consumer's. preferred_read_replica is -1: a partition has one replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from klamm.apis.broker import Broker
from klamm.apis.registry import Request, api
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from klamm.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPosition,
    PartitionKey,
    TargetSet,
)
from klamm.replication.fetching import FetchResult, ParkedFetch, PartitionAnswer, collect, settle
from klamm.replication.partition import Partition
from klamm.storage.log import WouldBlock

_FIRST_VERSION_WITH_CURRENT_LEADER = 12
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_READ_COMMITTED = 1
_NO_RECORDS = b""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""No answer is longer, whatever the client allows: a frame's length must fit in 32 bits with room."""


@api(ApiKey.FETCH)
def handle(broker: Broker, request: Request[FetchRequest]) -> FetchResponse | asyncio.Future[FetchResponse]:
    uses_topic_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
    try:
        fetch = _resolve_session(broker, request, uses_topic_ids)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return _Fetch(broker, request, fetch).start()


def _resolve_session(broker: Broker, request: Request[FetchRequest], uses_topic_ids: bool) -> TargetSet:
    message = request.message
    sessions = broker.fetch_sessions
    positions = _positions(message, uses_topic_ids)
    if message.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        sessions.remove(message.session_id)
        if message.session_epoch == INITIAL_EPOCH:
            session = sessions.create(request.connection, positions, uses_topic_ids)
            if session is not None:
                return session
        return TargetSet(positions)
    return sessions.resume(
        message.session_id,
        message.session_epoch,
        positions,
        _forgotten(message, uses_topic_ids),
        uses_topic_ids,
    )


def _positions(message: FetchRequest, uses_topic_ids: bool) -> Iterator[FetchPosition]:
    for topic in message.topics:
        name: str | bytes = topic.topic_id if uses_topic_ids else topic.topic
        for partition in topic.partitions:
            yield FetchPosition(
                (name, partition.partition),
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )


def _forgotten(message: FetchRequest, uses_topic_ids: bool) -> Iterator[PartitionKey]:
    for topic in message.forgotten_topics_data:
        name: str | bytes = topic.topic_id if uses_topic_ids else topic.topic
        for partition in topic.partitions:
            yield name, partition


class _Fetch:
    """One fetch request while it is being answered."""

    __slots__ = (
        "broker",
        "fetch",
        "is_read_committed",
        "max_bytes",
        "message",
        "min_bytes",
        "request",
    )

    def __init__(self, broker: Broker, request: Request[FetchRequest], fetch: TargetSet) -> None:
        self.broker = broker
        self.request = request
        self.message = request.message
        self.fetch = fetch
        most_bytes = min(broker.config.int_("fetch.max.bytes"), MAX_RESPONSE_BYTES)
        self.max_bytes = min(request.message.max_bytes, most_bytes)
        # Who asks for more than an answer may hold is not kept waiting for it.
        self.min_bytes = min(request.message.min_bytes, self.max_bytes)
        self.is_read_committed = request.message.isolation_level == _READ_COMMITTED

    def start(self) -> FetchResponse | asyncio.Future[FetchResponse]:
        try:
            result = self._collect()
        except WouldBlock:
            return asyncio.ensure_future(self._answer_from_disk())
        if self._is_enough(result) or self.message.max_wait_ms <= 0:
            return self._respond(result)
        return ParkedFetch(
            self.fetch,
            self._attempt,
            self._answer_from_disk,
            min_bytes=self.min_bytes,
            bytes_so_far=result.byte_count,
            max_wait_ms=self.message.max_wait_ms,
        ).future

    def _collect(self) -> FetchResult:
        self.fetch.resolve(self._find_partition)
        return collect(self.fetch, self.max_bytes, may_block=False)

    def _attempt(self, is_last: bool) -> FetchResponse | None:
        result = self._collect()
        return self._respond(result) if is_last or self._is_enough(result) else None

    async def _answer_from_disk(self) -> FetchResponse:
        return self._respond(
            await self.broker.partitions.run_in_thread(collect, self.fetch, self.max_bytes, may_block=True)
        )

    def _is_enough(self, result: FetchResult) -> bool:
        return result.must_answer or result.byte_count >= self.min_bytes or not self.fetch.targets

    def _find_partition(self, key: PartitionKey) -> Partition:
        name, index = key
        if isinstance(name, bytes):
            return self.broker.partitions.get_by_id(name, index)
        return self.broker.partitions.get(name, index)

    def _respond(self, result: FetchResult) -> FetchResponse:
        fetch = self.fetch
        topics: dict[str | bytes, list[PartitionData]] = {}
        for answer in settle(fetch, result.answers):
            name, index = answer.target.position.key
            topics.setdefault(name, []).append(self._partition_data(index, answer))
        responses = [
            FetchableTopicResponse(topic_id=name, partitions=partitions)
            if isinstance(name, bytes)
            else FetchableTopicResponse(topic=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
        return FetchResponse(session_id=fetch.session_id, responses=responses)

    def _partition_data(self, index: int, answer: PartitionAnswer) -> PartitionData:
        data = PartitionData(
            partition_index=index,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            aborted_transactions=[] if self.is_read_committed else None,
            records=_NO_RECORDS if answer.records is None else answer.records,
        )
        if answer.error is not None:
            data.error_code = answer.error.code
            if self.request.version >= _FIRST_VERSION_WITH_CURRENT_LEADER and answer.error.code in (
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ):
                partition = answer.target.partition
                if partition is not None:
                    data.current_leader = LeaderIdAndEpoch(
                        leader_id=self.broker.node_id, leader_epoch=partition.leader_epoch
                    )
        if answer.diverging_epoch is not None:
            epoch, end_offset = answer.diverging_epoch
            data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return data
