"""Records of one shape in a row are decoded by columns; the answers must be those of reading byte by byte."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.long import cases
from tests.records.varints import decode_varint

from klamm.records.batch import BatchHeader, CorruptBatch
from klamm.records.decoding import DecodedRecords, Headers, decode_records
from klamm.records.encoding import encode_records
from klamm.records.runs import LEAST_RUN, decode_run

BASE_TIMESTAMP = 10**12


def decode(payload: bytes, count: int) -> DecodedRecords:
    header = BatchHeader(0, 0, 0, 2, 0, 0, max(count, 10**6), BASE_TIMESTAMP, 0, -1, -1, -1, count)
    return decode_records(header, payload)


def decode_slowly(payload: bytes, count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Offset, timestamp, key and value of records without headers, one byte after the other.

    Raises ValueError or IndexError where something is wrong.
    """
    records: list[tuple[int, int, bytes | None, bytes | None]] = []
    position = 0
    for _ in range(count):
        length, position = decode_varint(payload, position)
        end = position + length
        timestamp, position = decode_varint(payload, position + 1)
        offset, position = decode_varint(payload, position)
        fields: list[bytes | None] = []
        for _ in range(2):
            size, position = decode_varint(payload, position)
            fields.append(None if size < 0 else payload[position : position + size])
            position += max(size, 0)
        if payload[position] or position + 1 != end or offset <= (records[-1][0] if records else -1):
            raise ValueError("not a record without headers")
        position = end
        records.append((offset, BASE_TIMESTAMP + timestamp, fields[0], fields[1]))
    if position != len(payload):
        raise ValueError("more bytes than records")
    return records


def rows(decoded: DecodedRecords) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return list(zip(decoded.offsets, decoded.timestamps, decoded.keys, decoded.values, strict=True))


@pytest.mark.parametrize("key", [None, b"", b"k" * 9, b"k" * 70])
@pytest.mark.parametrize("value", [None, b"", b"v" * 5, b"v" * 100])
def test_one_shape(key: bytes | None, value: bytes | None) -> None:
    for count, step_ms in itertools.product((1, 2, LEAST_RUN, 63, 64, 65, 66, 100, 9000), (0, 1, -1, 977)):
        timestamps = [BASE_TIMESTAMP + index * step_ms for index in range(count)]
        keys, values = [key] * count, [value] * count
        decoded = decode(encode_records(keys, values, timestamps), count)
        assert rows(decoded) == list(zip(range(count), timestamps, keys, values, strict=True))
        assert decoded.headers == [()] * count


def test_columns_are_used() -> None:
    payload = encode_records(None, [b"v" * 10] * 64, [BASE_TIMESTAMP] * 64)
    size = len(payload) // 64
    run = decode_run(payload, 0, size, 1, 63)
    assert run is not None and run.values == [b"v" * 10] * 63
    assert decode_run(payload, 0, size, 2, 62) is None  # the offsets do not go on like this
    assert decode_run(payload, 0, size, 1, LEAST_RUN - 1) is None


def test_shapes_that_change() -> None:
    """Runs begin and end anywhere, and what is between them has all kinds of fields."""
    chance = random.Random(0)
    for _ in range(60):
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        timestamps: list[int] = []
        headers: list[Headers] = []
        while len(values) < 300:
            key = chance.choice([None, b"", chance.randbytes(8), chance.randbytes(64)])
            size = chance.choice([0, 1, 50, 60, 61, 62, 63, 64, 200])
            some: Headers = (("name", b"x"),) if chance.random() < 0.1 else ()
            step_ms = chance.choice([0, 1, 40, 9000])
            for _ in range(chance.choice([1, 1, 2, 3, 20, 90])):
                keys.append(key)
                values.append(chance.randbytes(size) if chance.random() < 0.95 else None)
                timestamps.append(timestamps[-1] + step_ms if timestamps else BASE_TIMESTAMP)
                headers.append(some)
        decoded = decode(encode_records(keys, values, timestamps, headers), len(values))
        assert rows(decoded) == list(zip(range(len(values)), timestamps, keys, values, strict=True))
        assert decoded.headers == headers


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("step_ms", cases([0, 1, 70], lambda step_ms: step_ms == 70))
def test_damage_anywhere(key: bytes | None, step_ms: int) -> None:
    """Any byte of any record may be wrong: then the batch is refused, or read as the slow way reads it."""
    count = 90
    payload = encode_records(
        [key] * count, [b"value"] * count, [BASE_TIMESTAMP + index * step_ms for index in range(count)]
    )
    refused = 0
    for place in range(len(payload)):
        for change in (0x01, 0x80):
            damaged = bytearray(payload)
            damaged[place] ^= change
            try:
                expected = decode_slowly(bytes(damaged), count)
            except (ValueError, IndexError, CorruptBatch):
                with pytest.raises(CorruptBatch):
                    decode(bytes(damaged), count)
                refused += 1
            else:
                assert rows(decode(bytes(damaged), count)) == expected
    assert refused > count


def test_gaps_that_compaction_leaves() -> None:
    deltas = [index + index // 20 for index in range(400)]
    values: list[bytes | None] = [b"v" * 30] * 400
    payload = encode_records(None, values, [BASE_TIMESTAMP] * 400, offset_deltas=deltas)
    assert list(decode(payload, 400).offsets) == deltas
