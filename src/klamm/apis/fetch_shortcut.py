"""Reads fetch requests that are shaped like an earlier one without decoding them, and encodes answers fast.

A consumer or a follower sends nearly the same bytes over and over. Only the correlation id, the session
epoch and what is asked of the named partitions differ: their indexes, offsets and epochs. A `RequestShape`
is made of such a request. It compares what lies between these fields and unpacks the fields. A connection
keeps the shapes of a few requests, among them the usual one of a session that names nothing.

From there on a request goes the ordinary way: its session is brought up to date and a `Fetch` answers it.
Only the bytes are read and written in another manner, and a test compares both. A request that fits no
shape is decoded. An answer with an error or another rarity is made as a message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from klamm.apis.broker import Broker
from klamm.apis.fetches import FIRST_VERSION_WITH_TOPIC_IDS, Fetch, FetchOptions, positions_of
from klamm.apis.registry import LATER, ConnectionHandle, Later, Replies, Request
from klamm.model.errors import KafkaError
from klamm.protocol.apis import FLEXIBLE_SINCE, ApiKey
from klamm.protocol.headers import encode_response_frame, parse_request_header
from klamm.protocol.messages.k01_fetch import FetchRequest, FetchResponse
from klamm.protocol.primitives import encode_uvarint
from klamm.replication.closest_replica import NO_PREFERENCE
from klamm.replication.fetch_sessions import (
    FINAL_EPOCH,
    HIGH_WATERMARK_NOT_GIVEN,
    INITIAL_EPOCH,
    FetchPosition,
    FetchSession,
    PartitionKey,
)
from klamm.replication.fetching import PartitionAnswer
from klamm.storage.log import FileSlice

FIRST_VERSION = 9
"""Older ones lay out partitions differently, and hardly any client speaks them."""
_FIRST_FLEXIBLE = FLEXIBLE_SINCE[ApiKey.FETCH]
_FIRST_VERSION_WITH_PREFERRED_REPLICA = 11
_FIRST_VERSION_WITH_REPLICA_STATE = 15

MAX_SHAPES = 16
"""Shapes that a connection keeps: a consumer names one partition, several, or none."""

MAX_KEY_BYTES = 40
"""How much of a request's first topic tells its shape from others."""

MAX_PARTITIONS = 100
"""Partitions of a request that gets a shape. To answer a longer one takes much longer than to decode it."""

_NO_TAGS = b"\0"
_HIGH_WATERMARK_TAG = b"\1\1\10"
"""The tagged fields of a follower's partition, up to the value: one field, its tag 1, its size 8."""

_CORRELATION_ID_PLACE = 1
_SESSION_EPOCH_PLACE = 3
"""Among the values of a frame, in which fixed bytes and fields alternate."""

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_POSITION = "iiqqi"
_FLEXIBLE_POSITION = "iiqiqi"
_FOLLOWERS_POSITION = "iiqiqi3sq"


ReadPosition = Callable[[str | bytes, Sequence[Any]], FetchPosition]
"""Makes what is asked of one partition of its topic and the values of its fields."""


ShapeKey = tuple[int, bytes]
"""The length of a frame and the first bytes of its topics."""


class OtherShape(Exception):
    """The request must be decoded."""


def _read_position(topic: str | bytes, values: Sequence[Any]) -> FetchPosition:
    index, leader_epoch, fetch_offset, log_start_offset, max_bytes = values
    return FetchPosition((topic, index), leader_epoch, fetch_offset, -1, log_start_offset, max_bytes)


def _read_flexible_position(topic: str | bytes, values: Sequence[Any]) -> FetchPosition:
    index, leader_epoch, fetch_offset, last_epoch, log_start_offset, max_bytes = values
    return FetchPosition((topic, index), leader_epoch, fetch_offset, last_epoch, log_start_offset, max_bytes)


def _read_followers_position(topic: str | bytes, values: Sequence[Any]) -> FetchPosition:
    index, leader_epoch, fetch_offset, last_epoch, log_start_offset, max_bytes, tag, high_watermark = values
    if tag != _HIGH_WATERMARK_TAG:
        raise OtherShape
    return FetchPosition(
        (topic, index), leader_epoch, fetch_offset, last_epoch, log_start_offset, max_bytes, high_watermark
    )


class RequestShape:
    """What all requests of one shape have in common.

    The parts of a frame alternate: fixed bytes, fields, fixed bytes, fields, and so on. The first field is
    the correlation id; in a session the next one is the session epoch; the others are those of partitions.
    """

    __slots__ = (
        "_fixed",
        "_partitions",
        "_pick_fixed",
        "_read_position",
        "_session",
        "_session_id",
        "_unpack",
        "encoder",
        "options",
    )

    def __init__(self, request: Request[FetchRequest], options: FetchOptions) -> None:
        """Raises OtherShape if requests like this one must be decoded."""
        message = request.message
        if message.forgotten_topics_data or (message.session_id == 0) != (
            message.session_epoch == FINAL_EPOCH
        ):
            raise OtherShape
        self.options = options
        self.encoder = _encoder_of(request.version, options.is_read_committed)
        self._session_id = message.session_id
        self._session: FetchSession | None = None
        layout = _lay_out(request)
        self._read_position = layout.read_position
        self._unpack = layout.frame.unpack
        self._pick_fixed = itemgetter(*layout.fixed)
        self._partitions = layout.partitions
        self._fixed = self._pick_fixed(self._unpack(request.frame))
        if self.read(request.frame)[2] != list(positions_of(message, request.version)):
            raise OtherShape  # there is more in it than we know of, such as tagged fields of a later version

    def read(self, frame: memoryview) -> tuple[int, int, list[FetchPosition]]:
        """The correlation id, the session epoch and the positions of a request. Raises OtherShape."""
        values = self._unpack(frame)
        if self._pick_fixed(values) != self._fixed:
            raise OtherShape
        session_epoch = FINAL_EPOCH
        if self._session_id:
            session_epoch = values[_SESSION_EPOCH_PLACE]
            if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
                raise OtherShape
        read = self._read_position
        positions = [read(topic, values[place]) for topic, place in self._partitions]
        return values[_CORRELATION_ID_PLACE], session_epoch, positions

    def find_session(
        self, broker: Broker, session_epoch: int, positions: list[FetchPosition]
    ) -> FetchSession:
        """The session of a request, as `k01_fetch` finds it. One that ends with its request is used again."""
        options = self.options
        if self._session_id:
            return broker.fetch_sessions.resume(
                self._session_id,
                session_epoch,
                positions,
                (),
                uses_topic_ids=options.version >= FIRST_VERSION_WITH_TOPIC_IDS,
                replica_id=options.replica_id,
            )
        session = self._session
        if session is not None and session.is_over and session.begin_again(positions):
            return session
        self._session = session = FetchSession(positions, replica_id=options.replica_id)
        return session


class _Layout(NamedTuple):
    """How a frame is unpacked, and what its values are."""

    frame: struct.Struct
    fixed: list[int]
    """Places of the fixed bytes among the values."""
    partitions: list[tuple[str | bytes, slice]]
    """The topic of each partition, and the places of its fields."""
    read_position: ReadPosition


def _lay_out(request: Request[FetchRequest]) -> _Layout:
    message, version = request.message, request.version
    is_flexible = version >= _FIRST_FLEXIBLE
    fields = [(4, "i")]
    at = _topics_at(request)
    if message.session_id:
        fields.append((at - 4, "i"))
    first = len(fields)
    at += _length_bytes(len(message.topics), is_flexible)
    read_position, position = _read_position, _POSITION
    if is_flexible:
        read_position, position = _read_flexible_position, _FLEXIBLE_POSITION
        if _tells_high_watermark(message):
            read_position, position = _read_followers_position, _FOLLOWERS_POSITION
    tag_bytes = len(_NO_TAGS) if is_flexible else 0
    topics: list[str | bytes] = []
    for topic in message.topics:
        name: str | bytes = topic.topic_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.topic
        at += len(_encode_topic(name, is_flexible)) + _length_bytes(len(topic.partitions), is_flexible)
        for _ in topic.partitions:
            topics.append(name)
            fields.append((at, position))
            at += struct.calcsize(">" + position)
            at += 0 if read_position is _read_followers_position else tag_bytes
        at += tag_bytes
    if at > len(request.frame) or len(topics) > MAX_PARTITIONS:
        raise OtherShape
    frame, fixed, places = _alternating(fields, len(request.frame))
    return _Layout(frame, fixed, list(zip(topics, places[first:], strict=True)), read_position)


def _topics_at(request: Request[FetchRequest]) -> int:
    *_, at = parse_request_header(request.frame)
    # Replica id; time to wait, least and most bytes, isolation level, session id, session epoch.
    return at + (0 if request.version >= _FIRST_VERSION_WITH_REPLICA_STATE else 4) + 4 + 4 + 4 + 1 + 4 + 4


def _first_topic_bytes(request: Request[FetchRequest]) -> int:
    """How long the number of topics and the first topic are in a request."""
    topics, version = request.message.topics, request.version
    if not topics:
        return MAX_KEY_BYTES
    is_flexible = version >= _FIRST_FLEXIBLE
    name: str | bytes = topics[0].topic_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else topics[0].topic
    return _length_bytes(len(topics), is_flexible) + len(_encode_topic(name, is_flexible))


def _length_bytes(count: int, is_flexible: bool) -> int:
    return len(encode_uvarint(count + 1)) if is_flexible else 4


def _tells_high_watermark(message: FetchRequest) -> bool:
    return any(
        partition.high_watermark != HIGH_WATERMARK_NOT_GIVEN
        for topic in message.topics
        for partition in topic.partitions
    )


def _alternating(fields: list[tuple[int, str]], size: int) -> tuple[struct.Struct, list[int], list[slice]]:
    """A structure of `fields`, given by where they start and their format, and of the fixed bytes between
    them; and where these and those are among its values."""
    formats, end = [">"], 0
    fixed: list[int] = []
    places: list[slice] = []
    count = 0
    for start, format_ in fields:
        formats.append(f"{start - end}s{format_}")
        end = start + struct.calcsize(">" + format_)
        fixed.append(count)
        value_count = len(struct.unpack(">" + format_, bytes(end - start)))
        places.append(slice(count + 1, count + 1 + value_count))
        count += 1 + value_count
    fixed.append(count)
    return struct.Struct("".join(formats) + f"{size - end}s"), fixed, places


class FetchShortcut:
    """The shapes of the requests of one connection, by the length of the frame and the first topic."""

    __slots__ = ("_broker", "_connection", "_seen", "_shapes", "_topic")

    api_key = 1
    """A number and no ApiKey: it is looked up for every answer."""

    def __init__(self, broker: Broker, connection: ConnectionHandle) -> None:
        self._broker = broker
        self._connection = connection
        self._topic = slice(0, MAX_KEY_BYTES)
        """Where the first topic lies in a frame. It ends with the shortest name that was seen, because what
        follows differs in each request."""
        self._shapes: dict[ShapeKey, RequestShape] = {}
        self._seen: set[ShapeKey] = set()
        """Requests that get a shape if they come again."""

    def learn(self, request: Request[FetchRequest], options: FetchOptions) -> None:
        """See a request that had to be decoded. The second one of its kind gets a shape."""
        start = _topics_at(request)
        end = start + min(_first_topic_bytes(request), self._topic.stop - self._topic.start)
        if slice(start, end) != self._topic or len(self._seen) >= MAX_SHAPES:
            self._topic = slice(start, end)
            self._shapes.clear()
            self._seen.clear()
        key = (len(request.frame), bytes(request.frame[self._topic]))
        if key not in self._seen:
            self._seen.add(key)
            return
        self._seen.discard(key)
        with suppress(OtherShape):
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = RequestShape(request, options)

    def take(self, frame: memoryview, replies: Replies) -> list[Any] | Later | None:
        shape = self._shapes.get((len(frame), bytes(frame[self._topic])))
        if shape is None:
            return None
        try:
            correlation_id, session_epoch, positions = shape.read(frame)
        except OtherShape:
            return None
        try:
            session = shape.find_session(self._broker, session_epoch, positions)
        except KafkaError as error:
            return encode_response_frame(
                ApiKey.FETCH, shape.options.version, correlation_id, FetchResponse(error_code=error.code)
            )
        fetch = Fetch(
            self._broker,
            self._connection,
            session,
            shape.options,
            encoder=shape.encoder,
            correlation_id=correlation_id,
        )
        answer = fetch.start()
        if answer is None:
            fetch.answer_later(replies.open_encoded(self.api_key, correlation_id))
            return LATER
        assert isinstance(answer, list)
        return answer


class AnswerEncoder:
    """Encodes the answers of one version, as the codec does."""

    __slots__ = (
        "_head",
        "_is_flexible",
        "_partition",
        "_shared_body",
        "_shared_key",
        "_shared_records",
        "_transactions_and_replica",
        "_version",
    )

    def __init__(self, version: int, is_read_committed: bool) -> None:
        self._version = version
        self._is_flexible = version >= _FIRST_FLEXIBLE
        # Size, correlation id, tagged fields of the header, throttle time, error, session id.
        self._head = struct.Struct(">iixihi" if self._is_flexible else ">iiihi")
        # Index, error, high watermark, last stable offset, log start offset.
        self._partition = struct.Struct(">ihqqq")
        # No aborted transactions (null where nobody asked for them), and no preferred replica.
        transactions = _length(0 if is_read_committed else -1, self._is_flexible)
        has_replica = version >= _FIRST_VERSION_WITH_PREFERRED_REPLICA
        self._transactions_and_replica = transactions + (_int32.pack(NO_PREFERENCE) if has_replica else b"")
        self._shared_records: bytes | bytearray | None = None
        self._shared_key: tuple[PartitionKey, int, int] | None = None
        self._shared_body: list[Any] = []

    def encode(self, fetch: Fetch, answers: list[PartitionAnswer]) -> list[Any]:
        """The chunks of the whole response frame."""
        for answer in answers:
            if not answer.is_plain:
                return encode_response_frame(
                    ApiKey.FETCH, self._version, fetch.correlation_id, fetch.response(answers)
                )
        body = self._encode_one(answers[0]) if len(answers) == 1 else self._encode_all(answers)
        size = self._head.size - _int32.size + sum(map(len, body))
        head = self._head.pack(size, fetch.correlation_id, 0, 0, fetch.session.session_id)
        return [head + body[0], *body[1:]]

    def _encode_one(self, answer: PartitionAnswer) -> list[Any]:
        """The body of an answer about one partition. When a batch is appended, many sessions get the same."""
        records = answer.records
        key = (answer.fetched.position.key, answer.high_watermark, answer.log_start_offset)
        if records is self._shared_records and key == self._shared_key:
            return self._shared_body
        start = _encode_only_topic(answer.topic, self._is_flexible) + self._encode_partition(answer)
        end = _NO_TAGS * 3 if self._is_flexible else b""
        if records is None:
            body: list[Any] = [start + end]
        else:
            body = [start, records, end] if end else [start, records]
        if not isinstance(records, FileSlice):  # whose file must not be kept open
            self._shared_records, self._shared_key, self._shared_body = records, key, body
        return body

    def _encode_all(self, answers: list[PartitionAnswer]) -> list[Any]:
        """The body of an answer, which is what follows the head of the frame; the first chunk is bytes."""
        is_flexible = self._is_flexible
        tags = _NO_TAGS if is_flexible else b""
        topics: dict[str | bytes, list[PartitionAnswer]] = {}
        for answer in answers:
            topics.setdefault(answer.topic, []).append(answer)
        chunks: list[Any] = []
        pieces = [_length(len(topics), is_flexible)]
        for name, of_topic in topics.items():
            pieces += (_encode_topic(name, is_flexible), _length(len(of_topic), is_flexible))
            for answer in of_topic:
                pieces.append(self._encode_partition(answer))
                if answer.records is not None:
                    chunks += (b"".join(pieces), answer.records)
                    pieces.clear()
                pieces.append(tags)
            pieces.append(tags)
        pieces.append(tags)
        rest = b"".join(pieces)
        if rest:
            chunks.append(rest)
        return chunks

    def _encode_partition(self, answer: PartitionAnswer) -> bytes:
        """All that stands before the records, their length included."""
        fetched, _, high_watermark, log_start_offset, records, *_ = answer
        return (
            self._partition.pack(fetched.position.key[1], 0, high_watermark, high_watermark, log_start_offset)
            + self._transactions_and_replica
            + _length(0 if records is None else len(records), self._is_flexible)
        )


@cache
def _encoder_of(version: int, is_read_committed: bool) -> AnswerEncoder:
    return AnswerEncoder(version, is_read_committed)


def _length(length: int, is_flexible: bool) -> bytes:
    """The length of a list or of bytes; -1 for null."""
    return encode_uvarint(length + 1) if is_flexible else _int32.pack(length)


@lru_cache(maxsize=1000)
def _encode_topic(name: str | bytes, is_flexible: bool) -> bytes:
    if isinstance(name, bytes):
        return name
    encoded = name.encode()
    return (encode_uvarint(len(encoded) + 1) if is_flexible else _int16.pack(len(encoded))) + encoded


@lru_cache(maxsize=1000)
def _encode_only_topic(name: str | bytes, is_flexible: bool) -> bytes:
    """A list of topics that has this one only, with one partition."""
    one = _length(1, is_flexible)
    return one + _encode_topic(name, is_flexible) + one
