"""Answers produce requests that repeat the one before without decoding them or encoding the answer.

A producer that writes to one partition sends the same bytes over and over, but for the correlation id and the
batch. After two equal requests in a row the connection gets a shortcut, which remembers the bytes around
the batch and the answer around its offsets. A request that fits is only compared; its batch is checked and
appended exactly as on the long way (k00_produce), and the answer is a copy with four numbers written into
it. A request that differs, or that would not succeed, takes the long way.

Measured with batches of one record, see docs/adr/0006: less than half the time.
"""

from __future__ import annotations

import struct
from weakref import ref

from klamm.apis.broker import Clock
from klamm.apis.registry import Request
from klamm.model.errors import KafkaError
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


class ProduceShortcut:
    __slots__ = (
        "_answer",
        "_clock",
        "_config",
        "_head",
        "_head_end",
        "_is_acks_all",
        "_is_flexible",
        "_key_and_version",
        "_offsets_position",
        "_partition",
        "_tail",
        "_zstd_allowed",
    )

    def __init__(
        self, request: Request[ProduceRequest], head: bytes, tail: bytes, partition: Partition, clock: Clock
    ) -> None:
        """`head` is what stands between correlation id and the batch's length, `tail` what follows it."""
        version = request.version
        self._key_and_version = bytes(request.frame[:_KEY_AND_VERSION_END])
        self._head = head
        self._head_end = _CORRELATION_ID_END + len(head)
        self._tail = tail
        self._is_flexible = version >= FLEXIBLE_SINCE[ApiKey.PRODUCE]
        self._zstd_allowed = version >= FIRST_VERSION_WITH_ZSTD
        self._is_acks_all = request.message.acks == ACKS_ALL
        self._partition = ref(partition)  # an idle connection must not keep what a deleted topic had
        self._config = partition.log.config
        self._clock = clock
        self._answer = _example_answer(request)
        self._offsets_position = self._answer.index(_marker)

    def take(self, frame: memoryview) -> bytes | None:
        """Append the batch of `frame` and return its answer; None, and nothing done, if it does not fit."""
        head_end = self._head_end
        if (
            frame[:_KEY_AND_VERSION_END] != self._key_and_version
            or frame[_CORRELATION_ID_END:head_end] != self._head
        ):
            return None
        try:
            if self._is_flexible:
                length, start = read_uvarint(frame, head_end)
                length -= 1
            else:
                (length,) = _int32.unpack_from(frame, head_end)
                start = head_end + _int32.size
        except (IndexError, struct.error):
            return None
        end = start + length
        partition = self._partition()
        if (
            length < 0
            or end + len(self._tail) != len(frame)
            or frame[end:] != self._tail
            or partition is None
            or partition.is_offline
            or partition.log.config is not self._config
        ):
            return None
        return self._append(frame, frame[start:end], partition)

    def _append(self, frame: memoryview, batch: memoryview, partition: Partition) -> bytes | None:
        try:
            header = validate_produced(
                batch,
                max_message_bytes=self._config.max_message_bytes,
                zstd_allowed=self._zstd_allowed,
            )
            if header.attributes & TRANSACTIONAL_FLAG:
                return None
            if self._is_acks_all:
                partition.check_enough_replicas()
        except KafkaError:
            return None
        try:
            result = partition.append(batch, header, self._clock.now_ms())
        except KafkaError:
            batch[: len(_NO_OFFSET)] = _NO_OFFSET  # the failed append may have written one already
            return None
        answer = self._answer
        answer[4:8] = frame[_KEY_AND_VERSION_END:_CORRELATION_ID_END]
        _offsets.pack_into(
            answer,
            self._offsets_position,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        return bytes(answer)


def is_for_one_partition(message: ProduceRequest) -> bool:
    return len(message.topic_data) == 1 and len(message.topic_data[0].partition_data) == 1


def make_shortcut(
    request: Request[ProduceRequest], partition: Partition, clock: Clock
) -> ProduceShortcut | None:
    """A shortcut for requests like this one, which had one batch for `partition` and succeeded at once."""
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
    length_size = len(encode_uvarint(len(records) + 1)) if is_flexible else _int32.size
    head_end = end - len(records) - length_size
    if frame[end:] != tail:
        return None
    return ProduceShortcut(request, bytes(frame[_CORRELATION_ID_END:head_end]), tail, partition, clock)


def _example_answer(request: Request[ProduceRequest]) -> bytearray:
    """A whole successful answer in the request's version, with `_MARKER` as its base offset."""
    topic = request.message.topic_data[0]
    partition = PartitionProduceResponse(index=topic.partition_data[0].index, base_offset=_MARKER)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
        ]
    )
    return bytearray(b"".join(encode_response_frame(ApiKey.PRODUCE, request.version, 0, response)))
