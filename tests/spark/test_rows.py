"""Rows from bytes: what differs between Klamm's columns and Spark's."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest

from klamm.records.batch import CRC_POSITION, HEADER, CorruptBatch, compute_crc, parse_header
from klamm.records.builder import build_batch
from klamm.records.fetched import FetchedRecords
from klamm.records.kernels import pyarrow
from klamm.records.reader import StoredRecord
from pyspark_klamm import rows
from pyspark_klamm.rows import RowDecoder
from tests.spark.driving import source

SCHEMA = source("x:1", includeHeaders=False).schema()
LAST_MICROSECOND = (2**63 - 1) // 1000 * 1000


def fetched(*batches: bytes | bytearray, from_offset: int = 0) -> FetchedRecords:
    return FetchedRecords("t", 3, memoryview(b"".join(batches)), from_offset)


def batch_of(first: int, count: int, **options: int) -> bytearray:
    records = [StoredRecord(offset, 1000, None, b"%d" % offset) for offset in range(first, first + count)]
    return build_batch(records, base_offset=first, **options)


def offsets(decoded: list[pyarrow.RecordBatch]) -> list[int]:
    return [offset for each in decoded for offset in each.column("offset").to_pylist()]


def test_times_are_microseconds_and_never_wrap() -> None:
    times = [0, 1234, 2**63 - 1]
    records = [StoredRecord(index, time, b"k", None) for index, time in enumerate(times)]
    without = build_batch([StoredRecord(3, -1, b"k", None)], base_offset=3)
    (batch,) = RowDecoder(SCHEMA)(fetched(build_batch(records), without), 9)
    micros = batch.column("timestamp").cast(pyarrow.int64()).to_pylist()
    assert micros == [0, 1_234_000, LAST_MICROSECOND, -1000]
    assert batch.column("timestamp")[1].as_py() == datetime(1970, 1, 1, 0, 0, 1, 234_000, UTC)


@pytest.mark.parametrize(("first", "end"), [(0, 30), (3, 25), (10, 20), (9, 11), (29, 30), (12, 12)])
def test_a_range_may_begin_and_end_inside_of_batches(first: int, end: int) -> None:
    data = [batch_of(0, 10), batch_of(10, 10, codec=4), batch_of(20, 10)]
    decoded = list(RowDecoder(SCHEMA)(fetched(*data, from_offset=first), end))
    assert offsets(decoded) == list(range(first, end))


def test_large_answers_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BATCH_ROWS", 4)
    monkeypatch.setattr(rows, "MAX_BATCH_BYTES", 50)
    data = [batch_of(first, 10) for first in range(0, 50, 10)]
    decoded = list(RowDecoder(SCHEMA)(fetched(*data), 47))
    assert offsets(decoded) == list(range(47))
    assert max(each.num_rows for each in decoded) == 4


def test_a_batch_whose_last_records_are_gone_does_not_end_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BATCH_BYTES", 1)
    thinned = batch_of(0, 2)
    HEADER.pack_into(thinned, 0, *parse_header(thinned)._replace(last_offset_delta=9))
    struct.pack_into(">I", thinned, CRC_POSITION, compute_crc(thinned))
    decoded = list(RowDecoder(SCHEMA)(fetched(thinned, batch_of(10, 2), from_offset=5), 12))
    assert offsets(decoded) == [10, 11]


def test_gaps_at_both_ends_and_in_the_middle() -> None:
    decoded = list(RowDecoder(SCHEMA)(fetched(batch_of(5, 2), batch_of(20, 2), from_offset=1), 30))
    assert offsets(decoded) == [5, 6, 20, 21]


def test_what_comes_before_a_damaged_batch_is_handed_out() -> None:
    damaged = batch_of(10, 10)
    damaged[-1] ^= 1
    decoding = RowDecoder(SCHEMA)(fetched(batch_of(0, 10), damaged), 20)
    assert next(decoding).num_rows == 10
    with pytest.raises(CorruptBatch, match=r"t-3: the CRC of the batch at offset 10"):
        list(decoding)
