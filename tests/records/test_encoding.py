"""The client's encoder, by aiokafka's reader and by our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.varints import decode_varint

from klamm.records.batch import BatchHeader, CorruptBatch
from klamm.records.decoding import decode_records
from klamm.records.encoding import encode_records, encode_varint

int64 = st.integers(-(2**63), 2**63 - 1)


@given(number=int64)
def test_numbers(number: int) -> None:
    encoded = encode_varint(number)
    assert len(encoded) <= 10
    assert decode_varint(encoded, 0) == (number, len(encoded))


@pytest.mark.parametrize("encoded", [b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x01", b"\x80" * 20 + b"\x00"])
def test_numbers_of_more_than_64_bits(encoded: bytes) -> None:
    with pytest.raises(CorruptBatch, match="64 bits"):
        decode_varint(encoded, 0)


def header(count: int, base_timestamp: int) -> BatchHeader:
    return BatchHeader(100, 0, -1, 2, 0, 0, count - 1, base_timestamp, 0, -1, -1, -1, count)


def test_sizes_around_the_limits_of_their_numbers() -> None:
    lengths = [0, 1, 50, 62, 63, 64, 65, 127, 128, 8100, 8190, 8191, 8192, 8193, 16383, 16384, 2**20]
    values = [bytes(length) for length in lengths]
    keys: list[bytes | None] = [*values[1:], None]
    timestamps = [10**12 + length for length in lengths]
    for given_keys in (None, keys):
        payload = encode_records(given_keys, values, timestamps)
        decoded = decode_records(header(len(values), 10**12), payload)
        assert decoded.values == values
        assert decoded.keys == (given_keys or [None] * len(values))
        assert list(decoded.timestamps) == timestamps
        assert list(decoded.offsets) == list(range(100, 100 + len(values)))


def test_more_records_than_the_table_has_numbers() -> None:
    values = [b"%d" % index for index in range(20_000)]
    timestamps = [10**12 - index for index in range(20_000)]
    decoded = decode_records(header(20_000, 10**12), encode_records(None, values, timestamps))
    assert decoded.values == values
    assert list(decoded.timestamps) == timestamps


@given(
    rows=st.lists(st.tuples(st.none() | st.binary(max_size=70), int64 | st.integers(0, 3)), min_size=1),
    repeat=st.integers(1, 70),
)
def test_values_alone_are_encoded_like_records_without_keys(
    rows: list[tuple[bytes | None, int]], repeat: int
) -> None:
    values = [value for value, _ in rows for _ in range(repeat)]
    timestamps = [timestamp % 2**62 for _, timestamp in rows for _ in range(repeat)]
    with_keys = encode_records([None] * len(values), values, timestamps)
    assert encode_records(None, values, timestamps) == with_keys


def test_anything_like_bytes() -> None:
    payload = encode_records([bytearray(b"k")], [memoryview(b"v")], [0], [(("h", memoryview(b"w")),)])  # type: ignore[list-item]
    decoded = decode_records(header(1, 0), payload)
    assert (decoded.keys, decoded.values, decoded.headers) == ([b"k"], [b"v"], [(("h", b"w"),)])
