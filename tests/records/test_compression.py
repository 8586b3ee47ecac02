"""Every codec against itself, against what it must refuse, and against an independent reader."""

from __future__ import annotations

import contextlib
import os
import struct

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.records.batch import CorruptBatch
from klamm.records.compression import Codec, _likely_size, compress, decompress

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
PAYLOADS = [b"a", b"hello " * 100_000, os.urandom(200_000)]


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=5000), repeat=st.integers(1, 60))
def test_round_trip(codec: Codec, data: bytes, repeat: int) -> None:
    assert decompress(codec, compress(codec, data * repeat), 1_000_000) == data * repeat


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("data", PAYLOADS, ids=["one", "runs", "noise"])
def test_agrees_with_aiokafka(codec: Codec, data: bytes) -> None:
    name = codec.name.lower()
    assert bytes(getattr(aiokafka.codec, f"{name}_decode")(compress(codec, data))) == data
    assert decompress(codec, bytes(getattr(aiokafka.codec, f"{name}_encode")(data))) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(1, 1), (1, 9), (3, 1), (3, 9), (3, 17), (4, 1), (4, 19), (2, 5)]
)
def test_levels(codec: int, level: int) -> None:
    data = os.urandom(3000) * 50
    assert decompress(codec, compress(codec, data, level)) == data


def test_snappy_is_read_without_framing() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"plain" * 50))) == b"plain" * 50


def test_lz4_blocks_are_independent() -> None:
    flags = compress(Codec.LZ4, b"x" * 200_000)[4]
    assert flags & 0x20, "Kafka's reader refuses frames whose blocks depend on each other"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("writer", ["klamm", "aiokafka"])
@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_535, 65_536, 65_791, 65_792, 300_000])
def test_what_is_opened_says_how_much_it_is(codec: Codec, writer: str, size: int) -> None:
    """Else everything would be opened several times, until the buffer is large enough."""
    data = (b"%d" % size * size)[:size]
    theirs = getattr(aiokafka.codec, f"{codec.name.lower()}_encode")
    packed = compress(codec, data) if writer == "klamm" else bytes(theirs(data))
    likely = _likely_size(codec, memoryview(packed))
    if codec == Codec.LZ4:
        assert size <= likely  # in full blocks; older versions of cramjam, which aiokafka uses, fill none
        assert writer == "aiokafka" or likely < size + 65_536
    else:
        assert likely == size


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@given(data=st.binary(max_size=30))
def test_a_lie_about_the_size_costs_nothing(codec: Codec, data: bytes) -> None:
    assert _likely_size(codec, memoryview(data)) >= 0
    if codec == Codec.GZIP:
        lie = compress(codec, b"x" * 50_000)[:-4] + data[:4].ljust(4, b"\xff")
        with contextlib.suppress(CorruptBatch):  # the size is part of what gzip checks
            assert decompress(codec, lie, 1_000_000) == b"x" * 50_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_output_is_bounded(codec: Codec) -> None:
    bomb = compress(codec, bytes(5_000_000))
    with pytest.raises(CorruptBatch, match="more than the 1000000 bytes"):
        decompress(codec, bomb, 1_000_000)
    assert len(decompress(codec, bomb, 5_000_000)) == 5_000_000


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(min_size=1, max_size=200))
def test_garbage_is_refused_or_opened_but_never_crashes(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, data, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_data_is_refused(codec: Codec) -> None:
    whole = compress(codec, os.urandom(5000))
    with pytest.raises(CorruptBatch):
        decompress(codec, whole[: len(whole) // 2])


def test_snappy_block_lengths_are_checked() -> None:
    header = compress(Codec.SNAPPY, b"")
    for length in (-1, 10, 2**31 - 1):
        with pytest.raises(CorruptBatch, match="snappy block states"):
            decompress(Codec.SNAPPY, header + struct.pack(">i", length) + b"abc")


def test_unknown_codec() -> None:
    with pytest.raises(CorruptBatch, match="7"):
        decompress(7, b"abc")
