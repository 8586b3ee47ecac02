"""Answers produce requests that repeat an earlier one without decoding them or encoding the answer.

A producer that writes to a few partitions sends the same bytes over and over, but for the correlation id and
the batch. The second request with the same bytes before its batch gets a shortcut, which remembers the bytes
around the batch and the answer around its offsets. A later request that fits is only compared; its batch is
checked and appended exactly as on the long way (k00_produce), and the answer is a copy with four numbers
written into it. If the batch waits for other replicas, the answer waits with it. A request that differs, or
that would not succeed, takes the long way. A shortcut ends with the leader epoch in which it was made.

Measured with batches of one record, see docs/adr/0006: less than half the time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from weakref import ref

from klamm.apis.broker import Clock
from klamm.apis.registry import LATER, Later, Replies, Request
from klamm.model.errors import KafkaError
from klamm.model.reply import Reply
from klamm.protocol.apis import FLEXIBLE_SINCE, ApiKey
from klamm.protocol.headers import encode_response_frame
from klamm.protocol.messages.k00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.primitives import encode_uvarint, read_uvarint
from klamm.records.batch import TRANSACTIONAL_FLAG
from klamm.records.validation import validate_produced
from klamm.replication.opening import opens_every_batch
from klamm.replication.partition import Partition
from klamm.replication.waiting_produces import WaitingProduces

MAX_SHORTCUTS = 64
"""Of one connection, at less than a kilobyte each. A producer that writes to more partitions of this broker
hardly gains by them, as its batches are then few per partition."""

_FIRST_VERSION_WITH_LOG_START = 5
FIRST_VERSION_WITH_ZSTD = 7
ACKS_ALL = -1
_KEY_AND_VERSION_END = 4
_CORRELATION_ID_END = 8
_MARKER = 0x4B6C616D6D
"""A base offset that is looked for in an encoded answer, to know where offsets stand in it."""
_NO_TAGS = bytes(3)
"""The tagged fields of partition, topic and request, when there are none."""
_NO_OFFSET = bytes(8)

_int32 = struct.Struct(">i")
_offsets = struct.Struct(">qqq")
_marker = struct.pack(">q", _MARKER)


class ProduceShortcuts:
    """The shortcuts of one connection, by their heads: the bytes between correlation id and batch."""

    __slots__ = ("_by_head", "_clock", "_head_ends", "_key_and_version", "_last", "_waiting")

    api_key = 0
    """A number and no ApiKey: it is looked up for every answer."""

    def __init__(self, clock: Clock, waiting: WaitingProduces) -> None:
        self._clock = clock
        self._waiting = waiting
        self._key_and_version = b""
        """All shortcuts are for one version: a client sends no other."""
        self._by_head: dict[bytes, ProduceShortcut | None] = {}
        """None for a head that was seen once."""
        self._head_ends: tuple[int, ...] = ()
        """Where the heads of the shortcuts end: at one place, unless names of topics differ in length."""
        self._last: ProduceShortcut | None = None

    def __len__(self) -> int:
        return sum(shortcut is not None for shortcut in self._by_head.values())

    def offer(self, request: Request[ProduceRequest], partition: Partition) -> None:
        """Remember `request`, which had one batch for `partition` and succeeded, or make a shortcut of it."""
        head = _head_of(request, partition)
        if head is None:
            return
        if request.frame[:_KEY_AND_VERSION_END] != self._key_and_version:
            self._forget()
            self._key_and_version = bytes(request.frame[:_KEY_AND_VERSION_END])
        if head in self._by_head:
            self._last = self._by_head[head] = ProduceShortcut(request, head, partition)
            self._head_ends = tuple(dict.fromkeys((*self._head_ends, _CORRELATION_ID_END + len(head))))
            return
        if len(self._by_head) >= MAX_SHORTCUTS:
            self._forget()  # the producer may have turned to other partitions
        self._by_head[head] = None

    def _forget(self) -> None:
        """Learn all shortcuts again."""
        self._by_head.clear()
        self._head_ends = ()
        self._last = None

    def take(self, frame: memoryview, replies: Replies) -> Sequence[bytes] | Later | None:
        """Append the batch of `frame` and return its answer; None, and nothing done, if no shortcut fits.

        LATER if the batch waits for other replicas: then the reply to the request is opened.
        """
        if frame[:_KEY_AND_VERSION_END] != self._key_and_version:
            return None
        shortcut = self._last
        if shortcut is None or frame[_CORRELATION_ID_END : shortcut.head_end] != shortcut.head:
            shortcut = self._find(frame)
            if shortcut is None:
                return None
            self._last = shortcut
        batch = shortcut.batch_of(frame)
        partition = shortcut.partition()
        if (
            batch is None
            or partition is None
            or partition.is_offline
            or partition.leader_epoch != shortcut.leader_epoch
            or partition.log.config is not shortcut.config
        ):
            return None
        return self._append(shortcut, frame, batch, partition, replies)

    def _find(self, frame: memoryview) -> ProduceShortcut | None:
        for head_end in self._head_ends:
            shortcut = self._by_head.get(bytes(frame[_CORRELATION_ID_END:head_end]))
            if shortcut is not None:
                return shortcut
        return None

    def _append(
        self,
        shortcut: ProduceShortcut,
        frame: memoryview,
        batch: memoryview,
        partition: Partition,
        replies: Replies,
    ) -> Sequence[bytes] | Later | None:
        try:
            header = validate_produced(
                batch,
                max_message_bytes=shortcut.config.max_message_bytes,
                zstd_allowed=shortcut.zstd_allowed,
            )
            if header.attributes & TRANSACTIONAL_FLAG:
                return None
            if shortcut.is_acks_all:
                partition.check_enough_replicas()
        except KafkaError:
            return None
        try:
            result = partition.append(batch, header, self._clock.now_ms())
        except KafkaError:
            batch[: len(_NO_OFFSET)] = _NO_OFFSET  # the failed append may have written one already
            return None
        answer = shortcut.answer
        answer[4:8] = frame[_KEY_AND_VERSION_END:_CORRELATION_ID_END]
        _offsets.pack_into(
            answer,
            shortcut.offsets_position,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        if result.last_offset < partition.high_watermark or not shortcut.is_acks_all:
            return (bytes(answer),)
        (correlation_id,) = _int32.unpack_from(frame, _KEY_AND_VERSION_END)
        reply = replies.open_encoded(self.api_key, correlation_id)
        waiting = _WaitingAnswer(result.last_offset + 1, reply, bytes(answer), shortcut, correlation_id)
        self._waiting.add(partition, waiting, shortcut.timeout_ms)
        return LATER


class ProduceShortcut:
    """What is remembered of the requests with one head."""

    __slots__ = (
        "_index",
        "_is_flexible",
        "_tail",
        "_topic",
        "_topic_id",
        "_version",
        "answer",
        "config",
        "head",
        "head_end",
        "is_acks_all",
        "leader_epoch",
        "offsets_position",
        "partition",
        "timeout_ms",
        "zstd_allowed",
    )

    def __init__(self, request: Request[ProduceRequest], head: bytes, partition: Partition) -> None:
        self._version = request.version
        self._is_flexible = request.version >= FLEXIBLE_SINCE[ApiKey.PRODUCE]
        self._tail = _NO_TAGS if self._is_flexible else b""
        topic = request.message.topic_data[0]
        self._topic = topic.name
        self._topic_id = topic.topic_id
        self._index = topic.partition_data[0].index
        self.head = head
        self.head_end = _CORRELATION_ID_END + len(head)
        self.zstd_allowed = request.version >= FIRST_VERSION_WITH_ZSTD
        self.is_acks_all = request.message.acks == ACKS_ALL
        self.timeout_ms = request.message.timeout_ms
        self.partition = ref(partition)  # an idle connection must not keep what a deleted topic had
        self.leader_epoch = partition.leader_epoch
        self.config = partition.log.config
        self.answer = self._frame(0, PartitionProduceResponse(index=self._index, base_offset=_MARKER))
        """A whole successful answer."""
        self.offsets_position = self.answer.index(_marker)

    def batch_of(self, frame: memoryview) -> memoryview | None:
        """The batch of a frame that has the right head; None if something else follows the batch."""
        try:
            if self._is_flexible:
                length, start = read_uvarint(frame, self.head_end)
                length -= 1
            else:
                (length,) = _int32.unpack_from(frame, self.head_end)
                start = self.head_end + _int32.size
        except (IndexError, struct.error):
            return None
        end = start + length
        if length < 0 or end + len(self._tail) != len(frame) or frame[end:] != self._tail:
            return None
        return frame[start:end]

    def refusal(self, correlation_id: int, error: KafkaError) -> bytes:
        """The answer to a request whose batch was appended and cannot be acknowledged."""
        return bytes(
            self._frame(
                correlation_id,
                PartitionProduceResponse(
                    index=self._index,
                    base_offset=-1,
                    log_start_offset=-1,
                    error_code=error.code,
                    error_message=error.message,
                ),
            )
        )

    def _frame(self, correlation_id: int, partition: PartitionProduceResponse) -> bytearray:
        topic = TopicProduceResponse(
            name=self._topic, topic_id=self._topic_id, partition_responses=[partition]
        )
        response = ProduceResponse(responses=[topic])
        return bytearray(
            b"".join(encode_response_frame(ApiKey.PRODUCE, self._version, correlation_id, response))
        )


class _WaitingAnswer:
    """A batch that other replicas must fetch, and the answer for when they have."""

    __slots__ = ("_answer", "_correlation_id", "_reply", "_shortcut", "deadline_s", "end_offset")

    def __init__(
        self, end_offset: int, reply: Reply, answer: bytes, shortcut: ProduceShortcut, correlation_id: int
    ) -> None:
        self.end_offset = end_offset
        self.deadline_s = 0.0
        self._reply = reply
        self._answer = answer
        self._shortcut = shortcut
        self._correlation_id = correlation_id

    @property
    def is_open(self) -> bool:
        return self._reply.is_open

    def acknowledge(self, error: KafkaError | None) -> None:
        answer = self._answer if error is None else self._shortcut.refusal(self._correlation_id, error)
        self._reply.complete_encoded([answer])


def is_for_one_partition(message: ProduceRequest) -> bool:
    return len(message.topic_data) == 1 and len(message.topic_data[0].partition_data) == 1


def _head_of(request: Request[ProduceRequest], partition: Partition) -> bytes | None:
    """The bytes between correlation id and batch; None if requests like this one get no shortcut."""
    config = partition.log.config
    records = request.message.topic_data[0].partition_data[0].records
    if (
        request.version < _FIRST_VERSION_WITH_LOG_START
        or request.message.acks == 0
        or config.uses_log_append_time
        or config.flushes_by_itself
        or opens_every_batch(config)
        or config.compression_type != "producer"
        or records is None
    ):
        return None
    is_flexible = request.version >= FLEXIBLE_SINCE[ApiKey.PRODUCE]
    tail = _NO_TAGS if is_flexible else b""
    frame = request.frame
    end = len(frame) - len(tail)
    if frame[end:] != tail:
        return None
    length_size = len(encode_uvarint(len(records) + 1)) if is_flexible else _int32.size
    return bytes(frame[_CORRELATION_ID_END : end - len(records) - length_size])
