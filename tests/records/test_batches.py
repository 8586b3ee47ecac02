"""Building and reading batches, cross-checked with the record code of aiokafka."""

from __future__ import annotations

import contextlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from klamm.records.batch import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    CorruptBatch,
    compute_crc,
    parse_header,
    patch_log_append_time,
    patch_offset_and_epoch,
)
from klamm.records.builder import build_batch, number_records
from klamm.records.compression import Codec
from klamm.records.reader import StoredRecord, iter_records, iter_spans, open_payload

nullable_bytes = st.none() | st.binary(max_size=200)
header_pairs = st.lists(st.tuples(st.text(max_size=10), nullable_bytes), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, gaps: bool = True) -> list[StoredRecord]:
    count = draw(st.integers(1, 20))
    offset = draw(st.integers(0, 2**62)) if gaps else 0
    records = []
    for _ in range(count):
        timestamp = draw(st.integers(0, 2**45))
        records.append(
            StoredRecord(offset, timestamp, draw(nullable_bytes), draw(nullable_bytes), draw(header_pairs))
        )
        offset += draw(st.integers(1, 1000)) if gaps else 1
    return records


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists())
def test_round_trip(codec: Codec, records: list[StoredRecord]) -> None:
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)
    header = parse_header(batch)
    assert header.size == len(batch)
    assert header.crc == compute_crc(batch)
    assert header.compression == codec
    assert header.records_count == len(records)
    assert header.last_offset == records[-1].offset
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(iter_records(batch)) == records


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists())
def test_aiokafka_reads_ours(codec: Codec, records: list[StoredRecord]) -> None:
    batch = DefaultRecordBatch(bytes(build_batch(records, base_offset=records[0].offset, codec=codec)))
    assert batch.validate_crc()
    theirs = [StoredRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert theirs == records


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists(gaps=False))
def test_ours_reads_aiokafka(codec: Codec, records: list[StoredRecord]) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 3, 11, 1 << 20)
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = parse_header(batch)
    assert header.crc == compute_crc(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert list(iter_records(batch)) == records
    if codec == Codec.NONE:
        ours = build_batch(records, producer_id=7, producer_epoch=3, base_sequence=11)
        assert ours[:12] == batch[:12] and ours[16:] == batch[16:]  # the leader epoch is the broker's


@given(records=record_lists(), codec=st.sampled_from(list(Codec)))
def test_spans_cover_the_payload(records: list[StoredRecord], codec: Codec) -> None:
    base = records[0].offset
    batch = build_batch(records, base_offset=base, codec=codec)
    base_timestamp = parse_header(batch).base_timestamp
    payload = bytes(open_payload(batch))
    starts, ends, *fields = zip(*iter_spans(payload, len(records)), strict=True)
    assert [*zip(*fields, strict=True)] == [
        (r.offset - base, r.timestamp - base_timestamp, r.key, r.value is not None) for r in records
    ]
    assert starts == (0, *ends[:-1])
    assert ends[-1] == len(payload)


def test_patches_leave_a_valid_batch() -> None:
    batch = build_batch(number_records([(b"k", b"v"), (None, b"w")], 1000))
    patch_offset_and_epoch(batch, 70, 5)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (70, 71, 5)
    assert header.crc == compute_crc(batch)
    patch_log_append_time(batch, header.attributes, 5000)
    header = parse_header(batch)
    assert header.uses_log_append_time and header.max_timestamp == 5000
    assert header.crc == compute_crc(batch)
    assert [r.timestamp for r in iter_records(batch)] == [5000, 5000]


def test_last_sequence_wraps() -> None:
    batch = build_batch(
        number_records([(None, b"")] * 3, 1), producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE - 1
    )
    assert parse_header(batch).last_sequence == 0


@given(data=st.data(), records=record_lists(gaps=False))
def test_damaged_records_are_refused_or_read_but_never_crash(
    data: st.DataObject, records: list[StoredRecord]
) -> None:
    batch = build_batch(records)
    position = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        assert len(list(iter_records(batch))) == len(records)


def test_records_count_beyond_the_bytes() -> None:
    batch = build_batch(number_records([(None, b"v")], 1))
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch):
        list(iter_records(batch))
