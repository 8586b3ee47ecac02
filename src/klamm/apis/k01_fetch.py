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
from collections.abc import Callable, Iterator, Sized

from klamm.apis.broker import Broker
from klamm.apis.registry import LATER, Later, Request, api
from klamm.apis.steps import Steps, lazily, pieces_of
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
from klamm.replication.fetching import (
    FetchResult,
    ParkedFetch,
    PartitionAnswer,
    collect,
    ready_targets,
    select_for_response,
)
from klamm.replication.partition import Partition
from klamm.storage.log import WouldBlock

_FIRST_VERSION_WITH_CURRENT_LEADER = 12
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_READ_COMMITTED = 1
_NO_RECORDS = b""

Answer = FetchResponse | Steps[FetchResponse]
Outcome = Answer | Later

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""No answer is longer, whatever the client allows: a frame's length must fit in 32 bits with room."""


@api(ApiKey.FETCH)
def handle(broker: Broker, request: Request[FetchRequest]) -> Outcome | Steps[Outcome]:
    uses_topic_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
    if request.is_large:
        return _handle_in_steps(broker, request, uses_topic_ids)
    try:
        fetch = _resolve_session(broker, request, _positions(request.message, uses_topic_ids), uses_topic_ids)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return _Fetch(broker, request, fetch).start()


def _handle_in_steps(broker: Broker, request: Request[FetchRequest], uses_topic_ids: bool) -> Steps[Outcome]:
    positions: list[FetchPosition] = []
    for position in _positions(request.message, uses_topic_ids):
        positions.append(position)
        yield
    try:
        # Without positions at first: many of them are added in steps.
        fetch = _resolve_session(broker, request, iter(()), uses_topic_ids)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    for piece in pieces_of(positions):
        fetch.update(piece)
        yield
    try:
        broker.fetch_sessions.recount(fetch)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return (yield from _Fetch(broker, request, fetch).start_in_steps())


def _resolve_session(
    broker: Broker,
    request: Request[FetchRequest],
    positions: Iterator[FetchPosition],
    uses_topic_ids: bool,
) -> TargetSet:
    message = request.message
    sessions = broker.fetch_sessions
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
        # An answer holds at most max_bytes: waiting for more would never end.
        self.min_bytes = min(request.message.min_bytes, self.max_bytes)
        self.is_read_committed = request.message.isolation_level == _READ_COMMITTED

    def start(self) -> Outcome:
        try:
            result = self._collect()
        except WouldBlock:
            self._start_reading_from_disk()
            return LATER
        if self._is_enough(result) or self.message.max_wait_ms <= 0:
            return self._respond(result)
        self._park(result)
        return LATER

    def start_in_steps(self) -> Steps[Outcome]:
        """As `start`, for very many partitions."""
        targets = ready_targets(self.fetch)
        for piece in pieces_of(targets):
            self.fetch.resolve(self._find_partition, piece)
            yield
        result = FetchResult(self.max_bytes, self._reserve_files(targets))
        try:
            for piece in pieces_of(targets):
                result.collect(piece, may_block=False)
                yield
        except WouldBlock:
            self._start_reading_from_disk()
            return LATER
        sessions = self.broker.fetch_sessions
        count = len(self.fetch.targets)
        if self._is_enough(result) or self.message.max_wait_ms <= 0 or not sessions.may_park(count):
            return (yield from self._respond_in_steps(result))
        sessions.count_parked(count)
        self._park(result, lambda: sessions.count_parked(-count))
        return LATER

    def _start_reading_from_disk(self) -> None:
        """Answer from a thread. Later requests of the connection start meanwhile."""
        asyncio.get_running_loop().create_task(self._read_from_disk())

    async def _read_from_disk(self) -> None:
        reply = self.request.reply
        try:
            reply.complete(await self._answer_from_disk())
        except Exception as error:
            reply.fail(error)

    def _park(self, result: FetchResult, on_end: Callable[[], None] | None = None) -> None:
        ParkedFetch(
            self.fetch,
            self.request.reply,
            self._attempt,
            self._answer_from_disk,
            min_bytes=self.min_bytes,
            bytes_so_far=result.byte_count,
            max_wait_ms=self.message.max_wait_ms,
            on_end=on_end,
        )

    def _collect(self) -> FetchResult:
        targets = ready_targets(self.fetch)
        self.fetch.resolve(self._find_partition, targets)
        result = collect(targets, self.max_bytes, self.request.connection.files_left, may_block=False)
        if len(targets) < len(self.fetch.ready):
            result.must_answer = True  # the others are looked at by the next fetch
        return result

    def _attempt(self, is_last: bool) -> Answer | None:
        if self.request.is_large:
            raise WouldBlock  # so many partitions are looked at by a thread
        result = self._collect()
        return self._respond(result) if is_last or self._is_enough(result) else None

    async def _answer_from_disk(self) -> Answer:
        targets = ready_targets(self.fetch)
        max_files = self._reserve_files(targets)
        return self._respond(
            await self.broker.partitions.run_in_thread(
                collect, targets, self.max_bytes, max_files, may_block=True
            )
        )

    def _reserve_files(self, targets: Sized) -> int:
        return self.request.reply.reserve_files(len(targets))

    def _is_enough(self, result: FetchResult) -> bool:
        return result.must_answer or result.byte_count >= self.min_bytes or not self.fetch.targets

    def _find_partition(self, key: PartitionKey) -> Partition:
        name, index = key
        if isinstance(name, bytes):
            return self.broker.partitions.get_by_id(name, index)
        return self.broker.partitions.get(name, index)

    def _respond(self, result: FetchResult) -> Answer:
        if self.request.is_large:
            return self._respond_in_steps(result)
        topics: dict[str | bytes, list[PartitionData]] = {}
        for answer in select_for_response(self.fetch, result.answers):
            name, index = answer.target.position.key
            topics.setdefault(name, []).append(self._partition_data(index, answer))
        return self._response(topics)

    def _respond_in_steps(self, result: FetchResult) -> Steps[FetchResponse]:
        topics: dict[str | bytes, list[PartitionAnswer]] = {}
        for piece in pieces_of(result.answers):
            for answer in select_for_response(self.fetch, piece):
                topics.setdefault(answer.target.position.key[0], []).append(answer)
            yield

        def data(answer: PartitionAnswer) -> PartitionData:
            return self._partition_data(answer.target.position.key[1], answer)

        return self._response({name: lazily(answers, data) for name, answers in topics.items()})

    def _response(self, topics: dict[str | bytes, list[PartitionData]]) -> FetchResponse:
        responses = [
            FetchableTopicResponse(topic_id=name, partitions=partitions)
            if isinstance(name, bytes)
            else FetchableTopicResponse(topic=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
        return FetchResponse(session_id=self.fetch.session_id, responses=responses)

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
