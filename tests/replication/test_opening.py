from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import compute_crc, parse_header
from klamm.records.builder import assemble_batch, build_batch, number_records
from klamm.records.compression import Codec
from klamm.records.reader import iter_records
from klamm.replication.opening import NullKey, must_open, open_and_rewrite
from klamm.storage.log_config import LogConfig
from tests.replication.partitions import NOW_MS

COMPACTED = LogConfig(cleanup_compact=True, cleanup_delete=False)


def batch_of(*pairs: tuple[bytes | None, bytes | None], codec: int = Codec.NONE) -> bytearray:
    return build_batch(
        number_records(pairs, NOW_MS), codec=codec, producer_id=5, producer_epoch=1, base_sequence=9
    )


def test_ordinary_batches_stay_closed() -> None:
    for codec in Codec:
        header = parse_header(batch_of((None, b"value"), codec=codec))
        assert not must_open(header, LogConfig())
        assert must_open(header, COMPACTED)
        assert must_open(header, LogConfig(compression_type="zstd")) == (codec != Codec.ZSTD)
        assert must_open(header, LogConfig(compression_type="uncompressed")) == (codec != Codec.NONE)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compacted_topic_needs_keys(codec: int) -> None:
    fine = batch_of((b"a", b"1"), (b"", b"2"), (b"c", None), codec=codec)
    assert open_and_rewrite(fine, COMPACTED) is fine
    with pytest.raises(NullKey) as raised:
        open_and_rewrite(batch_of((b"a", b"1"), (b"b", b"2"), (None, b"3"), codec=codec), COMPACTED)
    assert raised.value.record_index == 2
    assert raised.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_its_own_codec(codec: int, name: str) -> None:
    batch = batch_of((b"a", b"1" * 1000), (None, b"2"), codec=codec)
    rewritten = open_and_rewrite(bytearray(batch), LogConfig(compression_type=name))
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


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_is_not_opened(codec: int) -> None:
    batch = bomb(codec, 300)
    with pytest.raises(KafkaError) as raised:
        open_and_rewrite(batch, COMPACTED)
    assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_does_not_decompress_is_corrupt(codec: int) -> None:
    batch = batch_of((b"a", b"1" * 1000), codec=Codec.NONE)
    batch[21:23] = codec.to_bytes(2, "big")
    with pytest.raises(KafkaError) as raised:
        open_and_rewrite(batch, COMPACTED)
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
            open_and_rewrite(batch, COMPACTED)
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
    with pytest.raises(KafkaError, match="record 1 of the batch says that it is 0"):
        open_and_rewrite(batch, COMPACTED)
