from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import NO_TIMESTAMP, compute_crc, parse_header
from klamm.records.builder import assemble_batch, build_batch, number_records
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord, iter_records
from klamm.replication.opening import MAX_RECORD_ERRORS, InvalidRecords, must_open, open_and_rewrite
from klamm.storage.log_config import LogConfig
from tests.long import cases
from tests.replication.partitions import NOW_MS

COMPACTED = LogConfig(cleanup_compact=True, cleanup_delete=False)


def batch_of(*pairs: tuple[bytes | None, bytes | None], codec: int = Codec.NONE) -> bytearray:
    return build_batch(
        number_records(pairs, NOW_MS), codec=codec, producer_id=5, producer_epoch=1, base_sequence=9
    )


def test_ordinary_batches_stay_closed() -> None:
    for codec in Codec:
        header = parse_header(batch_of((None, b"value"), codec=codec))
        assert not must_open(header, LogConfig(), NOW_MS)
        assert must_open(header, COMPACTED, NOW_MS)
        assert must_open(header, LogConfig(compression_type="zstd"), NOW_MS) == (codec != Codec.ZSTD)
        assert must_open(header, LogConfig(compression_type="uncompressed"), NOW_MS) == (codec != Codec.NONE)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compacted_topic_needs_keys(codec: int) -> None:
    fine = batch_of((b"a", b"1"), (b"", b"2"), (b"c", None), codec=codec)
    assert open_and_rewrite(fine, COMPACTED, NOW_MS) is fine
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(
            batch_of((None, b"1"), (b"b", b"2"), (None, b"3"), (None, b"4"), codec=codec), COMPACTED, NOW_MS
        )
    assert [each.batch_index for each in raised.value.record_errors] == [0, 2, 3]
    assert raised.value.code == ErrorCode.INVALID_RECORD


def test_an_answer_names_so_many_records_and_no_more() -> None:
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(batch_of(*[(None, b"")] * (MAX_RECORD_ERRORS + 5)), COMPACTED, NOW_MS)
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


@pytest.mark.parametrize("max_record_errors", [0, 1, 2, 3])
def test_what_is_refused_does_not_depend_on_how_many_records_are_named(max_record_errors: int) -> None:
    batch = timed((NOW_MS, None), (NOW_MS, b"b"), (0, b"c"), (NOW_MS, None))
    config = LogConfig(cleanup_compact=True, message_timestamp_before_max_ms=100)
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(batch, config, NOW_MS, max_record_errors)
    assert [each.batch_index for each in raised.value.record_errors] == [0, 2, 3][:max_record_errors]
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert raised.value.message.startswith(
        "record 0 of the batch is refused, and so are 2 others: the record "
    )


LIMITED = LogConfig(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=100)


def timed(*times_and_keys: tuple[int, bytes | None]) -> bytearray:
    return build_batch(
        [
            StoredRecord(index, timestamp, key, b"value")
            for index, (timestamp, key) in enumerate(times_and_keys)
        ]
    )


@pytest.mark.parametrize(
    ("ages_ms", "refused"),
    [
        ((0, 100, -100), []),
        ((101, 0, -101), [0, 2]),
        ((0, 101, 0), [1]),  # the header shows neither the oldest record nor that there is one
        ((0, 0, -101), [2]),
    ],
)
def test_every_record_with_a_time_out_of_range_is_named(ages_ms: tuple[int, ...], refused: list[int]) -> None:
    batch = timed(*((NOW_MS - age_ms, b"key") for age_ms in ages_ms))
    assert must_open(parse_header(batch), LIMITED, NOW_MS)
    if not refused:
        assert open_and_rewrite(batch, LIMITED, NOW_MS) is batch
        return
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(batch, LIMITED, NOW_MS)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in raised.value.record_errors] == refused


def test_records_without_a_time_are_not_too_old() -> None:
    batch = timed((NO_TIMESTAMP, b"a"), (NO_TIMESTAMP, b"b"))
    assert open_and_rewrite(batch, LIMITED, NOW_MS) is batch


def test_a_batch_with_a_record_from_the_future_is_opened_to_name_it() -> None:
    config = LogConfig(message_timestamp_after_max_ms=100)
    assert not must_open(parse_header(timed((NOW_MS - 10**9, b"a"))), config, NOW_MS)
    batch = timed((NOW_MS, b"a"), (NOW_MS + 101, b"b"))
    assert must_open(parse_header(batch), config, NOW_MS)
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(batch, config, NOW_MS)
    assert [each.batch_index for each in raised.value.record_errors] == [1]


def test_the_brokers_own_time_is_never_out_of_range() -> None:
    config = LogConfig(
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=100,
        message_timestamp_after_max_ms=100,
    )
    assert not must_open(parse_header(timed((0, b"a"), (NOW_MS * 2, b"b"))), config, NOW_MS)


def test_a_bad_time_is_told_before_a_missing_key() -> None:
    config = LogConfig(cleanup_compact=True, message_timestamp_before_max_ms=100)
    with pytest.raises(InvalidRecords) as raised:
        open_and_rewrite(timed((0, None), (NOW_MS, None), (0, b"c")), config, NOW_MS)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    messages = [each.message for each in raised.value.record_errors]
    assert [("key" in message, "timestamp" in message) for message in messages] == [
        (True, False),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_its_own_codec(codec: int, name: str) -> None:
    batch = batch_of((b"a", b"1" * 1000), (None, b"2"), codec=codec)
    rewritten = open_and_rewrite(bytearray(batch), LogConfig(compression_type=name), NOW_MS)
    before, after = parse_header(batch), parse_header(rewritten)
    assert after.crc == compute_crc(rewritten) and after.size == len(rewritten)
    assert list(iter_records(rewritten)) == list(iter_records(batch))
    for field in ("producer_id", "producer_epoch", "base_sequence", "records_count", "max_timestamp"):
        assert getattr(after, field) == getattr(before, field)


def bomb(codec: int, megabytes: int) -> bytearray:
    """A batch of one record that is far larger than it looks."""
    return assemble_batch(
        bytes(megabytes << 20),
        records_count=1,
        base_offset=0,
        last_offset_delta=0,
        leader_epoch=-1,
        attributes=codec,
    )


@pytest.mark.parametrize(
    "codec", cases([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], lambda codec: codec is Codec.ZSTD)
)
def test_a_bomb_is_not_opened(codec: int) -> None:
    batch = bomb(codec, 300)
    with pytest.raises(KafkaError) as raised:
        open_and_rewrite(batch, COMPACTED, NOW_MS)
    assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_does_not_decompress_is_corrupt(codec: int) -> None:
    batch = batch_of((b"a", b"1" * 1000), codec=Codec.NONE)
    batch[21:23] = codec.to_bytes(2, "big")
    with pytest.raises(KafkaError) as raised:
        open_and_rewrite(batch, COMPACTED, NOW_MS)
    assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_records_that_contradict_their_count_are_refused() -> None:
    fine = batch_of((b"a", b"1"))
    payload = bytes(fine[61:])
    for count, content in ((2, payload), (1, payload[:-1]), (1, payload + b"more")):
        batch = assemble_batch(
            content,
            records_count=count,
            base_offset=0,
            last_offset_delta=count - 1,
            leader_epoch=-1,
            attributes=0,
        )
        with pytest.raises(KafkaError) as raised:
            open_and_rewrite(batch, COMPACTED, NOW_MS)
        assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_records_out_of_order_are_refused() -> None:
    later, earlier = batch_of((b"a", b"1"), (b"b", b"2")), batch_of((b"b", b"2"))
    batch = assemble_batch(
        bytes(later[61:])[: len(later) - len(earlier)] + bytes(earlier[61:]),
        records_count=2,
        base_offset=0,
        last_offset_delta=1,
        leader_epoch=-1,
        attributes=0,
    )
    with pytest.raises(KafkaError, match="record 1 of the batch has the offset delta 0, expected 1"):
        open_and_rewrite(batch, COMPACTED, NOW_MS)
