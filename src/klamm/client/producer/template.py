"""A template for produce requests with one small batch for one partition. A core.

A producer that sends record by record writes the same bytes again and again, but for the correlation id and
the batch, and gets answers that differ in three numbers. A template has both made once, by the general
encoder: a request is these bytes with the batch put in, and an answer that says no more than "written" is
compared and not decoded. Every other answer is left to the general decoder. See docs/adr/0010.
"""

from __future__ import annotations

from struct import Struct

from klamm.client.network.metadata import TopicMetadata
from klamm.client.producer.batches import Outcome
from klamm.client.producer.settings import ProducerSettings
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import FLEXIBLE_SINCE, ApiKey
from klamm.protocol.headers import encode_request_frame, encode_response_frame
from klamm.protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from klamm.protocol.primitives import encode_uvarint

MOST_TEMPLATE_BYTES = 16 * 1024
"""The largest batch that is copied into its request. Larger ones are written to the socket without a copy."""

TEMPLATE_VERSION = 13
"""The first version that names topics by id. Every current broker knows it."""

_KEY_AND_VERSION = slice(4, 8)
_BODY_START = 12
_LENGTH_SIZE = 1  # of the batch that is left out
_START = Struct(">i4si")  # size, key and version, correlation id
_SIZE_BYTES = 4
_AFTER_SIZE_BYTES = _START.size - _SIZE_BYTES
_CORRELATION_ID_BYTES = 4
_NUMBERS_BYTES = 24  # base offset, log append time, log start offset
_MARKER = 0x4B6C616D6D
"""The base offset of the example answer: where it is found in the encoded bytes, the numbers begin."""


class ProduceTemplate:
    """Makes the requests for one partition, to any leader of it, and reads their answers."""

    __slots__ = (
        "_answer",
        "_answer_end",
        "_answer_start",
        "_head",
        "_key_and_version",
        "_length",
        "_tail",
        "led_by",
        "topic_id",
    )

    api_key = ApiKey.PRODUCE.value
    version = TEMPLATE_VERSION

    def __init__(self, topic_id: bytes, partition: int, client_id: str, settings: ProducerSettings) -> None:
        assert topic_id != ZERO_TOPIC_ID and self.version >= FLEXIBLE_SINCE[ApiKey.PRODUCE]
        self.topic_id = topic_id
        self.led_by: tuple[TopicMetadata, int] | None = None
        """The leader's node id, and the metadata that name it: valid until the topic's metadata change."""
        head, _, self._tail = encode_request_frame(
            self.api_key, self.version, 0, client_id, _example_request(topic_id, partition, settings)
        )
        self._key_and_version = head[_KEY_AND_VERSION]
        self._head = head[_BODY_START:-_LENGTH_SIZE]
        self._length = (0, encode_uvarint(1))
        """The size of the latest batch, and its encoding: often all records have the same size."""
        answer = bytes(
            encode_response_frame(self.api_key, self.version, 0, _example_answer(topic_id, partition))[0]
        )[_SIZE_BYTES:]
        numbers_at = answer.index(_MARKER.to_bytes(8, "big"))
        self._answer_start = answer[_CORRELATION_ID_BYTES:numbers_at]
        self._answer_end = answer[numbers_at + _NUMBERS_BYTES :]
        self._answer = Struct(f">i{len(self._answer_start)}sqqq{len(self._answer_end)}s")

    def frame(self, correlation_id: int, batch: bytes | bytearray | memoryview) -> bytes:
        """The bytes of the request with this batch."""
        head, tail = self._head, self._tail
        batch_size = len(batch)
        known_size, length = self._length
        if batch_size != known_size:
            length = encode_uvarint(batch_size + 1)
            self._length = (batch_size, length)
        size = _AFTER_SIZE_BYTES + len(head) + len(length) + batch_size + len(tail)
        start = _START.pack(size, self._key_and_version, correlation_id)
        return b"".join((start, head, length, batch, tail))

    def read(self, correlation_id: int, frame: memoryview) -> Outcome | None:
        """The outcome, if the answer says nothing but that the batch is written; None for any other
        answer."""
        if len(frame) != self._answer.size:
            return None
        answered_id, start, base_offset, log_append_time_ms, _, end = self._answer.unpack(frame)
        if answered_id != correlation_id or start != self._answer_start or end != self._answer_end:
            return None
        return Outcome(base_offset, log_append_time_ms)


def _example_request(topic_id: bytes, partition: int, settings: ProducerSettings) -> ProduceRequest:
    batch = PartitionProduceData(index=partition, records=b"\0")
    return ProduceRequest(
        transactional_id=None,
        acks=settings.acks,
        timeout_ms=int(settings.request_timeout * 1000),
        topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[batch])],
    )


def _example_answer(topic_id: bytes, partition: int) -> ProduceResponse:
    """An answer without an error and without a throttle time."""
    written = PartitionProduceResponse(index=partition, error_code=0, base_offset=_MARKER)
    return ProduceResponse(
        responses=[TopicProduceResponse(topic_id=topic_id, partition_responses=[written])],
        throttle_time_ms=0,
    )
