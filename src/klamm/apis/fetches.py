"""One fetch request while it is being answered: look, then answer or wait, and look again when woken.

A look reads what the partitions of the session have (`replication/fetching.py`). If it is enough, the
request is answered. Else the request is parked: its session passes on the progress of its partitions, and
all requests that are woken in one turn of the event loop look once at its end, however many appends there
were. A consumer's request is woken when the high watermark rises, a follower's when the log grows, and both
when a partition is deleted, goes offline or changes its leader. When max_wait_ms is up, or another request
of the same session has come, the request is answered with what is there.

A look that would wait for a disk is made by a thread instead, and ends the waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from klamm.apis.broker import Broker
from klamm.apis.registry import ConnectionHandle
from klamm.apis.steps import Steps, lazily, pieces_of, with_pauses
from klamm.model.errors import ErrorCode
from klamm.model.reply import Reply
from klamm.protocol.messages.k01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from klamm.replication.fetch_sessions import FetchedPartition, FetchPosition, FetchSession, PartitionKey
from klamm.replication.fetching import PartitionAnswer, Reading, has_nothing_new, report_followers, settle
from klamm.replication.partition import Partition
from klamm.storage.log import WouldBlock

FIRST_VERSION_WITH_TOPIC_IDS = 13
_FIRST_VERSION_WITH_CURRENT_LEADER = 12
_FIRST_VERSION_WITH_ENDPOINTS = 16
_READ_COMMITTED = 1
_NO_RECORDS = b""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""No answer is longer, whatever the client allows: a frame's length must fit in 32 bits with room."""

Answer = FetchResponse | Steps[FetchResponse] | list[Any]
"""A message, the steps that make one, or the chunks of an encoded frame."""


_FIRST_FROM_FOLLOWERS = 11
"""Consumers may read from a follower since they tell their rack (KIP-392)."""


class FetchOptions(NamedTuple):
    """What a request says of its whole answer."""

    version: int
    replica_id: int
    broker_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool
    rack: str

    @classmethod
    def of(cls, message: FetchRequest, version: int, fetch_max_bytes: int) -> FetchOptions:
        max_bytes = min(message.max_bytes, fetch_max_bytes, MAX_RESPONSE_BYTES)
        state = message.replica_state
        return cls(
            version,
            message.replica_id if state is None else state.replica_id,
            -1 if state is None else state.replica_epoch,
            message.max_wait_ms,
            # An answer holds at most max_bytes: waiting for more would never end.
            min(message.min_bytes, max_bytes),
            max_bytes,
            message.isolation_level == _READ_COMMITTED,
            message.rack_id,
        )


def positions_of(message: FetchRequest, version: int) -> Iterator[FetchPosition]:
    """What a request asks of each partition that it names."""
    for topic in message.topics:
        name: str | bytes = topic.topic_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.topic
        for partition in topic.partitions:
            yield FetchPosition(
                (name, partition.partition),
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.partition_max_bytes,
                partition.high_watermark,
            )


class Encoder(Protocol):
    """Encodes whole answers for one connection."""

    def encode(self, fetch: Fetch, answers: list[PartitionAnswer]) -> list[Any]: ...


class Fetch:
    __slots__ = (
        "_encoder",
        "_is_large",
        "_is_over",
        "_is_woken",
        "_must_block",
        "_parked_partitions",
        "_reply",
        "_timer",
        "_woken_bytes",
        "broker",
        "connection",
        "correlation_id",
        "options",
        "session",
    )

    def __init__(
        self,
        broker: Broker,
        connection: ConnectionHandle,
        session: FetchSession,
        options: FetchOptions,
        *,
        encoder: Encoder | None = None,
        correlation_id: int = 0,
        is_large: bool = False,
    ) -> None:
        """Without an encoder the answer is a message, and the correlation id is not needed."""
        self.broker = broker
        self.connection = connection
        self.correlation_id = correlation_id
        self._encoder = encoder
        self._is_large = is_large
        self.session = session
        self.options = options
        self._reply: Reply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._must_block = False
        """A thread reads, or will: no further look."""
        self._is_woken = False
        self._is_over = False
        self._woken_bytes = 0
        """Bytes that were there at the last look, and those that have arrived since."""
        self._parked_partitions = 0
        """How many partitions are counted as named by large fetches that wait."""

    # ---- the first look

    def start(self) -> Answer | None:
        """The answer, if it is there now. If not, call `answer_later`."""
        ready = self._find_partitions(self.session.to_read())
        if self.session.is_follower:
            report_followers(self.session, ready, self.options.broker_epoch)
        if self._must_wait(ready):
            return None
        try:
            reading = self._read(ready)
        except WouldBlock:
            self._must_block = True
            return None
        if self._is_enough(reading) or self.options.max_wait_ms <= 0:
            answer = self._answer(reading)
            self.session.end_request()
            return answer
        self._woken_bytes = reading.byte_count
        return None

    def _must_wait(self, ready: Sequence[FetchedPartition]) -> bool:
        """True if it is plain that there is nothing to answer yet."""
        options = self.options
        return (
            options.min_bytes > 0
            and options.max_wait_ms > 0
            and not options.rack
            and bool(ready)
            and has_nothing_new(self.session)
        )

    def start_in_steps(self, reply: Reply) -> Steps[Answer | None]:
        """As `start`, for very many partitions."""
        try:
            return (yield from self._start_in_steps(reply))
        except GeneratorExit:  # the connection is gone
            self._end()
            raise

    def _start_in_steps(self, reply: Reply) -> Steps[Answer | None]:
        session, sessions = self.session, self.broker.fetch_sessions
        ready = session.to_read()
        for piece in pieces_of(ready):
            self._find_partitions(piece)
            if session.is_follower:
                report_followers(session, piece, self.options.broker_epoch)
            yield
        session.parked = self  # what arrives after a partition was read must not be missed
        reading = self._new_reading(reply.reserve_files(len(ready)))
        try:
            for piece in pieces_of(ready):
                for fetched in piece:
                    fetched.wait(session)
                reading.read(piece, sessions.newest_batches)
                yield
        except WouldBlock:
            self._must_block = True
            return None
        count = len(session.partitions)
        if self._is_enough(reading) or self.options.max_wait_ms <= 0 or not sessions.may_park(count):
            answer = yield from self._answer_in_steps(reading)
            self._end()
            return answer
        self._woken_bytes += reading.byte_count
        self._parked_partitions = count
        return None

    # ---- waiting

    def answer_later(self, reply: Reply) -> None:
        """Complete `reply` when there is enough, or the time is up."""
        self._reply = reply
        if self._must_block:
            self._look_on_disk()
            return
        reply.on_drop = self._end
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.options.max_wait_ms / 1000, self._look, True)
        if self._parked_partitions:
            self.broker.fetch_sessions.count_parked(self._parked_partitions)
        self._wait()
        if self._is_woken:  # between the steps of the first look
            self.broker.fetch_sessions.look_soon(self)

    def _wait(self) -> None:
        """Be woken by the progress of every partition. Those that are not ready are waited for already."""
        session = self.session
        session.parked = self
        for fetched in session.ready:
            fetched.wait(session)

    def wake(self, byte_count: int) -> bool:
        self._woken_bytes += byte_count
        if byte_count and self._woken_bytes < self.options.min_bytes:
            return False
        if not self._is_woken:
            self._is_woken = True
            if self._reply is not None:
                self.broker.fetch_sessions.look_soon(self)
        return True

    def look(self) -> None:
        """Look again, after being woken."""
        self._is_woken = False
        self._look(False)

    def answer_now(self) -> None:
        if self._reply is not None:  # else it is still looking, and is not going to wait for long
            self._look(True)

    def _look(self, is_last: bool) -> None:
        if self._is_over or self._must_block:
            return
        if self._is_large:  # so many partitions are looked at by a thread
            self._look_on_disk()
            return
        ready = self.session.to_read()
        try:
            for fetched in ready:
                if fetched.has_changed:
                    fetched.find(self._find_partition)
            reading = self._read(ready)
            if not is_last and not self._is_enough(reading):
                self._woken_bytes = reading.byte_count
                self._wait()
                return
            answer = self._answer(reading)
        except WouldBlock:
            self._look_on_disk()
        except Exception as error:
            self._fail(error)
        else:
            self._complete(answer)

    def _look_on_disk(self) -> None:
        """Read in a thread and answer with whatever is there."""
        self._must_block = True
        self._stop_waiting()
        assert self._reply is not None
        ready = self.session.to_read()
        reading = self._new_reading(self._reply.reserve_files(len(ready)))
        asyncio.get_running_loop().create_task(self._read_in_thread(reading, ready))

    async def _read_in_thread(self, reading: Reading, ready: Sequence[FetchedPartition]) -> None:
        try:
            async for fetched in with_pauses(ready):
                fetched.find(self._find_partition)
            await self.broker.partitions.run_in_thread(reading.read_blocking, ready)
            answer = self._answer(reading)
        except Exception as error:
            self._fail(error)
        else:
            self._complete(answer)

    def _complete(self, answer: Answer) -> None:
        self._end()
        assert self._reply is not None
        if isinstance(answer, list):
            self._reply.complete_encoded(answer)
        else:
            self._reply.complete(answer)

    def _fail(self, error: Exception) -> None:
        self._end()
        assert self._reply is not None
        self._reply.fail(error)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.session.parked is self:
            self.session.parked = None

    def _end(self) -> None:
        """The request is answered, or its connection is gone."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_waiting()
        self.session.end_request()
        if self._parked_partitions:
            self.broker.fetch_sessions.count_parked(-self._parked_partitions)

    # ---- reading

    def _find_partitions(self, ready: Sequence[FetchedPartition]) -> Sequence[FetchedPartition]:
        for fetched in ready:
            fetched.find(self._find_partition)
        return ready

    def _find_partition(self, key: PartitionKey) -> Partition:
        name, index = key
        partitions = self.broker.partitions
        if isinstance(name, bytes):
            name = partitions.topic_of(name)
        partition = partitions.get(name, index)
        if (
            partition.follower is None
            or self.session.is_follower
            or self.options.version < _FIRST_FROM_FOLLOWERS
        ):
            partition.check_led_or_offline()
        return partition

    def _new_reading(self, max_files: int) -> Reading:
        options = self.options
        return Reading(
            replica_id=self.session.replica_id,
            rack=options.rack,
            max_bytes=options.max_bytes,
            max_files=max_files,
        )

    def _read(self, ready: Sequence[FetchedPartition]) -> Reading:
        reading = self._new_reading(self.connection.files_left)
        reading.read(ready, self.broker.fetch_sessions.newest_batches)
        if len(ready) < len(self.session.ready):
            reading.must_answer = True  # the others are read by the next fetch
        return reading

    def _is_enough(self, reading: Reading) -> bool:
        return (
            reading.must_answer or reading.byte_count >= self.options.min_bytes or not self.session.partitions
        )

    # ---- the answer

    def _answer(self, reading: Reading) -> Answer:
        if self._is_large:
            return self._answer_in_steps(reading)
        answers = settle(self.session, reading.answers)
        if self._encoder is not None:
            return self._encoder.encode(self, answers)
        return self.response(answers)

    def response(self, answers: list[PartitionAnswer]) -> FetchResponse:
        """The answer as a message."""
        topics: dict[str | bytes, list[PartitionData]] = {}
        for answer in answers:
            topics.setdefault(answer.topic, []).append(self._partition_data(answer))
        return self._response(list(map(_topic_response, topics.items())), any(map(_names_leader, answers)))

    def _answer_in_steps(self, reading: Reading) -> Steps[FetchResponse]:
        topics: dict[str | bytes, list[PartitionAnswer]] = {}
        names_leaders = False
        for piece in pieces_of(reading.answers):
            for answer in settle(self.session, piece):
                topics.setdefault(answer.topic, []).append(answer)
                names_leaders |= _names_leader(answer)
            yield

        def topic_response(topic: tuple[str | bytes, list[PartitionAnswer]]) -> FetchableTopicResponse:
            name, answers = topic
            return _topic_response((name, lazily(answers, self._partition_data)))

        return self._response(lazily(topics.items(), topic_response), names_leaders)

    def _response(self, responses: list[FetchableTopicResponse], names_leaders: bool) -> FetchResponse:
        response = FetchResponse(session_id=self.session.session_id, responses=responses)
        if names_leaders and self.options.version >= _FIRST_VERSION_WITH_ENDPOINTS:
            response.node_endpoints = [
                NodeEndpoint(node_id=each.id, host=endpoint.host, port=endpoint.port, rack=each.rack)
                for each, endpoint in self.broker.cluster.image.brokers_at(self.connection.listener_name)
            ]
        return response

    def _partition_data(self, answer: PartitionAnswer) -> PartitionData:
        data = PartitionData(
            partition_index=answer.fetched.position.key[1],
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            aborted_transactions=[] if self.options.is_read_committed else None,
            preferred_read_replica=answer.preferred_read_replica,
            records=_NO_RECORDS if answer.records is None else answer.records,
        )
        if answer.error is not None:
            data.error_code = answer.error.code
            if _names_leader(answer) and self.options.version >= _FIRST_VERSION_WITH_CURRENT_LEADER:
                data.current_leader = self._current_leader(answer.fetched.position.key)
        if answer.diverging_epoch is not None:
            epoch, end_offset = answer.diverging_epoch
            data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return data

    def _current_leader(self, key: PartitionKey) -> LeaderIdAndEpoch | None:
        """The leader that this broker knows of."""
        image = self.broker.cluster.image
        name = image.topic_names_by_id.get(key[0]) if isinstance(key[0], bytes) else key[0]
        topic = None if name is None else image.topics.get(name)
        if topic is None or key[1] >= len(topic.partitions):
            return None
        state = topic.partitions[key[1]]
        return LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)


def _topic_response(topic: tuple[str | bytes, list[PartitionData]]) -> FetchableTopicResponse:
    """Of a topic that the client knows by its id or by its name."""
    id_or_name, partitions = topic
    if isinstance(id_or_name, bytes):
        return FetchableTopicResponse(topic_id=id_or_name, partitions=partitions)
    return FetchableTopicResponse(topic=id_or_name, partitions=partitions)


def _names_leader(answer: PartitionAnswer) -> bool:
    """True if the client asked a broker, or in a leader epoch, that is no longer the right one."""
    return answer.error is not None and answer.error.code in (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
