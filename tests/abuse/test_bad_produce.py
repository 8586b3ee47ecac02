"""Produce requests that are wrong in one thing each: the right error code, nothing appended, life goes on."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.records.batch import ATTRIBUTES_POSITION, CRC_POSITION, compute_crc
from klamm.records.builder import assemble_batch, build_batch, number_records
from klamm.records.compression import Codec
from klamm.testing.wire import WireConnection
from tests.abuse.calls import (
    NAMES_PRODUCE_VERSION,
    batch_of,
    create_topic,
    end_offset,
    now_ms,
    produce,
    produce_request,
    read_all,
    values_of,
)
from tests.abuse.conftest import Abused
from tests.abuse.raw import frame_of, open_socket, read_to_end
from tests.long import cases

MEGABYTE = 1 << 20
COUNT_POSITION = 57
LAST_DELTA_POSITION = 23
MAGIC_POSITION = 16
CONTROL_FLAG = 0x20
TRANSACTIONAL_FLAG = 0x10


@pytest.fixture
def connection(abused: Abused) -> Iterator[WireConnection]:
    with abused.connect() as made:
        yield made


@pytest.fixture
def topic(connection: WireConnection, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with one record; `check_untouched` finds it as it was."""
    name = "bad-" + request.node.name.replace("[", "-").replace("]", "").lower()[:200]
    create_topic(connection, name, configs={"max.message.bytes": 100_000})
    assert produce(connection, name, batch_of(b"first")).error_code == ErrorCode.NONE
    return name


def check_refused(connection: WireConnection, topic: str, batch: bytes | None, code: ErrorCode) -> None:
    """Refused as the first request of its kind, and again after good ones: repeated requests go another way
    through the broker."""
    for _ in range(2):
        answer = produce(connection, topic, batch)
        assert ErrorCode(answer.error_code) == code
        assert answer.base_offset == -1
        assert answer.error_message
        check_untouched(connection, topic)


def check_untouched(connection: WireConnection, topic: str) -> None:
    """The refused batch left no trace, and the next good ones follow the last good one."""
    known = values_of(read_all(connection, topic))
    assert known[0] == b"first" and set(known[1:]) <= {b"good"}
    for number in range(len(known), len(known) + 3):
        assert produce(connection, topic, batch_of(b"good")).base_offset == number


def patched(batch: bytearray, position: int, data: bytes, *, with_new_crc: bool = True) -> bytearray:
    batch[position : position + len(data)] = data
    if with_new_crc:
        batch[CRC_POSITION : CRC_POSITION + 4] = compute_crc(batch).to_bytes(4, "big")
    return batch


def test_a_wrong_crc(connection: WireConnection, topic: str) -> None:
    batch = patched(batch_of(b"value"), CRC_POSITION, b"\xde\xad\xbe\xef", with_new_crc=False)
    check_refused(connection, topic, batch, ErrorCode.CORRUPT_MESSAGE)


def test_a_flipped_bit_anywhere_after_the_crc(connection: WireConnection, topic: str) -> None:
    whole = batch_of(b"value")
    for position in range(ATTRIBUTES_POSITION, len(whole)):
        batch = bytearray(whole)
        batch[position] ^= 0x10
        assert produce(connection, topic, batch).error_code == ErrorCode.CORRUPT_MESSAGE, position
    check_untouched(connection, topic)


def message_set(magic: int) -> bytes:
    """What clients sent before record batches were invented."""
    timestamp = struct.pack(">q", now_ms()) if magic == 1 else b""
    content = (
        struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i", -1) + struct.pack(">i5s", 5, b"value")
    )
    return struct.pack(">qiI", 0, len(content) + 4, 0) + content


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("repeats", [1, 5])
def test_message_formats_of_old(connection: WireConnection, topic: str, magic: int, repeats: int) -> None:
    check_refused(connection, topic, message_set(magic) * repeats, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_formats_nobody_knows(connection: WireConnection, topic: str, magic: int) -> None:
    check_refused(
        connection,
        topic,
        patched(batch_of(b"value"), MAGIC_POSITION, bytes([magic])),
        ErrorCode.CORRUPT_MESSAGE,
    )


@pytest.mark.parametrize(("count", "last_delta"), [(2, 0), (1, 1), (0, 0), (-1, -2), (2**31 - 1, 0), (1, -1)])
def test_counts_that_contradict_offsets(
    connection: WireConnection, topic: str, count: int, last_delta: int
) -> None:
    batch = patched(batch_of(b"value"), COUNT_POSITION, struct.pack(">i", count))
    batch = patched(batch, LAST_DELTA_POSITION, struct.pack(">i", last_delta))
    check_refused(connection, topic, batch, ErrorCode.INVALID_RECORD)


def test_control_batches_are_not_for_clients(connection: WireConnection, topic: str) -> None:
    batch = build_batch(number_records([(b"\0\0\0\1", b"\0\0\0\0\0\0")], now_ms()), is_control=True)
    check_refused(connection, topic, batch, ErrorCode.INVALID_RECORD)


def test_two_batches_for_one_partition(connection: WireConnection, topic: str) -> None:
    check_refused(connection, topic, batch_of(b"one") + batch_of(b"two"), ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 60])
def test_batches_cut_short(connection: WireConnection, topic: str, size: int) -> None:
    check_refused(connection, topic, batch_of(b"value")[:size], ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("records", [None, b""])
def test_no_batch_at_all(connection: WireConnection, topic: str, records: bytes | None) -> None:
    check_refused(connection, topic, records, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_batches_that_lie_about_their_length(connection: WireConnection, topic: str, length: int) -> None:
    batch = patched(batch_of(b"value"), 8, struct.pack(">i", length))
    check_refused(connection, topic, batch, ErrorCode.CORRUPT_MESSAGE)


def test_a_message_that_is_too_large(connection: WireConnection, topic: str) -> None:
    check_refused(connection, topic, batch_of(bytes(100_001)), ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("acks", [5, 2, -2, 32767])
def test_acks_nobody_knows(connection: WireConnection, topic: str, acks: int) -> None:
    answer = produce(connection, topic, batch_of(b"value"), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    check_untouched(connection, topic)


def test_a_codec_nobody_knows(connection: WireConnection, topic: str) -> None:
    batch = patched(batch_of(b"value"), ATTRIBUTES_POSITION, struct.pack(">h", 5))
    check_refused(connection, topic, batch, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_zstd_came_with_version_7(connection: WireConnection, topic: str) -> None:
    for version in range(3, NAMES_PRODUCE_VERSION + 1):
        answer = produce(connection, topic, batch_of(b"value", codec=Codec.ZSTD), version=version)
        expected = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else ErrorCode.NONE
        assert ErrorCode(answer.error_code) == expected, f"version {version}"


def test_transactions_are_not_to_be_had(connection: WireConnection, topic: str) -> None:
    batch = batch_of(b"value", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    request = produce_request(topic, batch)
    request.transactional_id = "some-transaction"
    answer = connection.call(request, NAMES_PRODUCE_VERSION).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert produce(connection, topic, batch).error_code != ErrorCode.NONE
    check_untouched(connection, topic)


def test_one_bad_partition_among_good_ones(connection: WireConnection) -> None:
    create_topic(connection, "bad-among-good", partitions=3)
    data = [
        PartitionProduceData(index=0, records=batch_of(b"fine")),
        PartitionProduceData(index=1, records=b"junk" * 30),
        PartitionProduceData(index=2, records=batch_of(b"fine")),
        PartitionProduceData(index=3, records=batch_of(b"nowhere")),
        PartitionProduceData(index=-1, records=batch_of(b"nowhere")),
    ]
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="bad-among-good", partition_data=data)]
    )
    answers = connection.call(request, NAMES_PRODUCE_VERSION).responses[0].partition_responses
    assert [(answer.index, ErrorCode(answer.error_code)) for answer in answers] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.CORRUPT_MESSAGE),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [end_offset(connection, "bad-among-good", partition=index) for index in range(3)] == [1, 0, 1]


def test_topic_ids_nobody_has(connection: WireConnection) -> None:
    assert produce(connection, bytes(16), batch_of(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(connection, b"\x42" * 16, batch_of(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    wanted = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=b"\x42" * 16, name=None)], allow_auto_topic_creation=True
    )
    assert connection.call(wanted).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


ILLEGAL_NAMES = ["", ".", "..", "a b", "a/b", "../../etc", "a\0b", "ü", "a" * 250, "a,b", "a:b", "a\nb"]


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=repr)
def test_illegal_topic_names(connection: WireConnection, name: str) -> None:
    created = connection.call(
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)])
    )
    assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    for version in (1, 4, 9, 13):
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        (topic,) = connection.call(asked, version).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert produce(connection, name, batch_of(b"value")).error_code != ErrorCode.NONE


# ---- acks=0


def test_without_acks_there_is_no_answer(connection: WireConnection, topic: str) -> None:
    for number in range(10):
        connection.send(
            produce_request(topic, batch_of(b"%d" % number), acks=0),
            NAMES_PRODUCE_VERSION,
            expect_response=False,
        )
    # The first frame that comes back is the answer to this, and so everything before it is in the log.
    assert end_offset(connection, topic) == 11


@pytest.mark.parametrize("batch", [b"junk" * 30, b""], ids=["junk", "nothing"])
def test_without_acks_an_error_ends_the_connection(abused: Abused, topic: str, batch: bytes) -> None:
    with open_socket(abused.bootstrap) as sock:
        sock.sendall(frame_of(produce_request(topic, batch, acks=0), NAMES_PRODUCE_VERSION))
        assert read_to_end(sock) == b""


# ---- compacted topics


@pytest.fixture
def compacted(connection: WireConnection, request: pytest.FixtureRequest) -> str:
    name = "bad-" + request.node.name.replace("[", "-").replace("]", "").lower()
    create_topic(connection, name, configs={"cleanup.policy": "compact", "max.message.bytes": 5_000_000})
    return name


@pytest.mark.parametrize("version", [3, 7, 8, NAMES_PRODUCE_VERSION])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name.lower())
def test_a_compacted_topic_needs_keys(
    connection: WireConnection, compacted: str, version: int, codec: Codec
) -> None:
    pairs = [(b"a", b"1"), (b"b", b"2"), (None, b"3")]
    answer = produce(
        connection, compacted, build_batch(number_records(pairs, now_ms()), codec=codec), version=version
    )
    assert answer.error_code == ErrorCode.INVALID_RECORD
    if version >= 8:
        assert [error.batch_index for error in answer.record_errors] == [2]
        assert answer.record_errors[0].batch_index_error_message
    assert end_offset(connection, compacted) == 0
    assert produce(connection, compacted, batch_of(b"1", key=b"a")).base_offset == 0


@pytest.mark.parametrize(
    "codec",
    cases([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], lambda codec: codec is Codec.ZSTD),
    ids=lambda c: c.name.lower(),
)
def test_compression_bombs(abused: Abused, connection: WireConnection, compacted: str, codec: Codec) -> None:
    """A compacted topic must open its batches. Several clients send ones that open to far more."""
    abused.allowed_growth_bytes = 700 * MEGABYTE
    megabytes = 90 if codec in (Codec.SNAPPY, Codec.LZ4) else 400
    bomb = assemble_batch(
        bytes(megabytes * MEGABYTE),
        records_count=1,
        base_offset=0,
        last_offset_delta=0,
        leader_epoch=-1,
        attributes=codec,
    )
    others = [abused.connect() for _ in range(6)]
    try:
        for other in others:
            other.send(produce_request(compacted, bytes(bomb)), NAMES_PRODUCE_VERSION)
        for other in others:
            answer = other.receive().responses[0].partition_responses[0]
            assert answer.error_code != ErrorCode.NONE
    finally:
        for other in others:
            other.close()
    assert end_offset(connection, compacted) == 0


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name.lower()
)
def test_what_does_not_decompress(connection: WireConnection, compacted: str, codec: Codec) -> None:
    batch = patched(batch_of(b"value" * 100), ATTRIBUTES_POSITION, struct.pack(">h", codec))
    answer = produce(connection, compacted, batch)
    assert answer.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert end_offset(connection, compacted) == 0
