"""Walking along fetched bytes: what is skipped, what counts, what is refused."""

from __future__ import annotations

import struct

import pytest

from klamm.client.results import Record
from klamm.model.errors import ErrorCode, KafkaError
from klamm.records.batch import CorruptBatch, compute_crc, parse_header, patch_log_append_time
from klamm.records.builder import build_batch, number_records, stamp_producer
from klamm.records.compression import Codec
from klamm.records.decoding import decode_batch
from klamm.records.fetched import FetchedRecords, data_batches, end_offset
from klamm.records.reader import StoredRecord

ABORT, COMMIT = 0, 1


def data(
    offset: int, *values: bytes, producer: int = -1, codec: int = 0, in_transaction: bool = True
) -> bytearray:
    records = [StoredRecord(offset + index, 1000 + index, None, value) for index, value in enumerate(values)]
    return build_batch(
        records,
        base_offset=offset,
        codec=codec,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=producer >= 0 and in_transaction,
    )


def marker(offset: int, producer: int, kind: int) -> bytearray:
    key = struct.pack(">hh", 0, kind)
    record = StoredRecord(offset, 5, key, struct.pack(">hi", 0, 0))
    return build_batch(
        [record],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        is_control=True,
        is_transactional=True,
    )


def fetched(*batches: bytes | bytearray, from_offset: int = 0, **fields: object) -> FetchedRecords:
    return FetchedRecords("t", 0, memoryview(b"".join(batches)), from_offset, **fields)  # type: ignore[arg-type]


def values(given: FetchedRecords) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for batch in data_batches(given)
        for record in decode_batch(batch, Record, given.topic, given.partition, given.from_offset)
    ]


def test_records_have_all_their_fields() -> None:
    record = StoredRecord(7, 1234, b"k", b"v", (("a", b"1"), ("ü", None)))
    batch = build_batch([record], base_offset=7, leader_epoch=3)
    assert decode_batch(batch, Record, "t", 2, 0) == [
        Record("t", 2, 7, 1234, b"k", b"v", (("a", b"1"), ("ü", None)), "CreateTime", 3)
    ]
    patch_log_append_time(batch, parse_header(batch).attributes, 99)
    (stamped,) = decode_batch(batch, Record, "t", 2, 0)
    assert type(stamped) is Record
    assert (stamped.timestamp, stamped.timestamp_type) == (99, "LogAppendTime")


@pytest.mark.parametrize("codec", list(Codec))
def test_from_offset_within_a_batch(codec: Codec) -> None:
    batch = data(10, b"a", b"b", b"c", codec=codec)
    assert values(fetched(batch, from_offset=11)) == [(11, b"b"), (12, b"c")]
    assert values(fetched(batch, from_offset=13)) == []
    assert end_offset(fetched(batch, from_offset=11)) == 13


def test_gaps_of_compaction() -> None:
    kept = [StoredRecord(12, 1, None, b"a"), StoredRecord(15, 1, None, b"b")]
    batch = build_batch(kept, base_offset=10)
    struct.pack_into(">i", batch, 23, 9)  # the last record is gone too
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    given = fetched(batch, data(30, b"c"), from_offset=13)
    assert values(given) == [(15, b"b"), (30, b"c")]
    assert end_offset(given) == 31
    assert end_offset(fetched(batch)) == 20


def test_a_cut_last_batch_is_ignored() -> None:
    whole, cut = data(0, b"a"), data(1, b"b")
    for length in range(len(cut)):
        given = fetched(whole, cut[:length])
        assert values(given) == [(0, b"a")]
        assert end_offset(given) == 1
    assert values(fetched(cut[:40], from_offset=1)) == []
    assert end_offset(fetched(cut[:40], from_offset=1)) == 1
    assert end_offset(fetched(from_offset=5)) == 5


def test_an_empty_batch_counts() -> None:
    empty = data(0, b"a")[:61]
    for codec in Codec:
        struct.pack_into(">i", empty, 8, 61 - 12)
        struct.pack_into(">h", empty, 21, codec)
        struct.pack_into(">i", empty, 57, 0)
        struct.pack_into(">I", empty, 17, compute_crc(empty))
        assert values(fetched(empty, data(1, b"b"))) == [(1, b"b")]
        assert decode_batch(empty, Record, "t", 0, 0) == []


def test_control_batches_are_skipped_and_counted() -> None:
    given = fetched(data(0, b"a", producer=1), marker(1, 1, COMMIT))
    assert values(given) == [(0, b"a")]
    assert end_offset(given) == 2


def test_aborted_transactions() -> None:
    batches = (
        data(0, b"committed", producer=1),
        data(1, b"aborted", producer=2),
        data(2, b"plain"),
        data(3, b"aborted too", producer=2),
        marker(4, 2, ABORT),
        marker(5, 1, COMMIT),
        data(6, b"later", producer=2),
        data(7, b"never ended", producer=3),
        marker(8, 2, COMMIT),
        data(9, b"not in a transaction", producer=3, in_transaction=False),
    )
    given = fetched(*batches, aborted=((3, 7), (2, 1)))  # in any order
    expected = [b"committed", b"plain", b"later", b"not in a transaction"]
    assert [value for _, value in values(given)] == expected
    assert [value for _, value in values(fetched(*batches, aborted=()))][1] == b"aborted"
    assert len(values(fetched(*batches))) == 7
    # A fetch that begins inside of the transaction.
    assert [
        value for _, value in values(fetched(*batches[2:], from_offset=2, aborted=((2, 1), (3, 7))))
    ] == expected[1:]


def test_a_flipped_bit_is_found() -> None:
    first, second = data(0, b"a"), data(1, b"b")
    second[-2] ^= 1
    walk = data_batches(fetched(first, second))
    assert bytes(next(walk)) == first
    with pytest.raises(CorruptBatch, match="CRC of the batch at offset 1 "):
        next(walk)
    assert len(values(fetched(first, second, check_crcs=False))) == 2


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("length", [40, 200])
def test_old_formats_are_named(magic: int, length: int) -> None:
    old = bytearray(length)
    old[11] = length - 12
    old[16] = magic
    with pytest.raises(KafkaError, match=f"v{magic}, which is not supported") as caught:
        values(fetched(old))
    assert caught.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


FAULTS = {
    "magic": (">b", 16, 3, "magic 3"),
    "short": (">i", 8, 48, "less than its header"),
    "negative length": (">i", 8, -1, "less than its header"),
    "negative offset": (">q", 0, -1, "follows"),
    "large offset": (">q", 0, 2**63 - 1, "largest offset"),
    "negative last offset": (">i", 23, -1, "follows"),
    "codec": (">h", 21, 5, "compression"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_a_batch(fault: str) -> None:
    format_, position, value, message = FAULTS[fault]
    batch = data(0, b"a")
    struct.pack_into(format_, batch, position, value)
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    with pytest.raises(CorruptBatch, match=message):
        values(fetched(batch))
    with pytest.raises(CorruptBatch, match=message):
        end_offset(fetched(batch))


def test_batches_that_go_back() -> None:
    with pytest.raises(CorruptBatch, match="offset 4 follows offset 5"):
        values(fetched(data(4, b"a", b"b"), data(4, b"a", b"b")))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (-1, 0)])
def test_offsets_outside_of_the_batch(deltas: tuple[int, int]) -> None:
    records = [StoredRecord(10 + delta, 1, None, b"v") for delta in deltas]
    batch = build_batch(records, base_offset=10)
    struct.pack_into(">i", batch, 23, 1)
    with pytest.raises(CorruptBatch, match="do not ascend"):
        decode_batch(batch, Record, "t", 0, 0)


def test_timestamps_beyond_64_bits() -> None:
    batch = build_batch([*number_records([(None, b"a")], 1), StoredRecord(1, 2**62 + 1, None, b"b")])
    struct.pack_into(">q", batch, 27, 2**62)
    with pytest.raises(CorruptBatch, match="64 bits"):
        decode_batch(batch, Record, "t", 0, 0)


def test_stamped_batches_are_sound() -> None:
    batch = data(0, b"a", producer=5)
    stamp_producer(batch, 2**40, 7, 99)
    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 99)
    assert header.crc == compute_crc(batch)
    assert values(fetched(batch)) == [(0, b"a")]
