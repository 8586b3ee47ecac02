"""Records as Arrow columns: the same rows as the decoder of Python objects gives, or refused by both."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.bounds import run_with_checks
from tests.records.test_batches import record_lists

from klamm.client.results import Record
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.records.arrow import SCHEMA, to_record_batch
from klamm.records.batch import (
    CRC_POSITION,
    HEADER_SIZE,
    CorruptBatch,
    compute_crc,
    parse_header,
    patch_log_append_time,
)
from klamm.records.builder import assemble_batch, build_batch
from klamm.records.compression import Codec
from klamm.records.decoding import decode_batch, decode_records, open_payload
from klamm.records.encoding import encode_varint
from klamm.records.fetched import FetchedRecords, data_batches, end_offset
from klamm.records.reader import StoredRecord

Row = tuple[object, ...]
TYPES = {"CreateTime": 0, "LogAppendTime": 1}
FUZZ_ROUNDS = 4000


def rows_of_objects(fetched: Iterable[FetchedRecords]) -> list[Row]:
    return [
        (
            record.key,
            record.value,
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            TYPES[record.timestamp_type],
            [(shown(name), value) for name, value in record.headers],
        )
        for one in fetched
        for batch in data_batches(one)
        for record in decode_batch(batch, Record, one.topic, one.partition, one.from_offset)
    ]


def shown(name: str) -> str:
    """A header's name as columns have it: without surrogates, which stand for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def rows_of_columns(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    names = [name for name in SCHEMA.names if name != "headers"]
    columns = [batch.column(name) for name in names]
    columns[names.index("timestamp")] = batch.column("timestamp").cast(pa.int64())
    headers = [[(pair["key"], pair["value"]) for pair in row] for row in batch.column("headers").to_pylist()]
    return list(zip(*(column.to_pylist() for column in columns), headers, strict=True))


def in_one(fetched: Iterable[FetchedRecords], **limits: int) -> list[Row]:
    return rows_of_columns(to_record_batch(fetched, **limits)[0])


def some(
    *batches: bytes | bytearray, partition: int = 0, from_offset: int = 0, **fields: object
) -> FetchedRecords:
    data = memoryview(b"".join(batches))
    return FetchedRecords("orders", partition, data, from_offset, **fields)  # type: ignore[arg-type]


def plain(offset: int, count: int, codec: int = 0) -> bytearray:
    records = [StoredRecord(offset + i, 1000 + i, b"%d" % i, b"v%d" % (offset + i)) for i in range(count)]
    return build_batch(records, base_offset=offset, codec=codec)


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists(), appended=st.booleans())
def test_rows_are_the_records(codec: Codec, records: list[StoredRecord], appended: bool) -> None:
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)
    if appended:
        patch_log_append_time(batch, codec, 77)
    fetched = [some(batch, partition=3)]
    assert in_one(fetched) == rows_of_objects(fetched)


@given(lists=st.lists(record_lists(), min_size=1, max_size=4), data=st.data())
def test_any_number_of_batches_and_cuts(lists: list[list[StoredRecord]], data: st.DataObject) -> None:
    fetched = []
    for partition, records in enumerate(lists):
        cut = data.draw(st.integers(1, len(records)))
        base = records[0].offset
        batches = [build_batch(records[:cut], base_offset=base, codec=data.draw(st.integers(0, 4)))]
        if records[cut:]:
            start = records[cut].offset
            batches.append(build_batch(records[cut:], base_offset=start, codec=data.draw(st.integers(0, 4))))
        from_offset = data.draw(st.sampled_from(records)).offset
        fetched.append(some(*batches, partition=partition, from_offset=from_offset))
    expected = rows_of_objects(fetched)
    assert in_one(fetched) == expected
    most = data.draw(st.integers(1, 7))
    assert list(polled(fetched, max_records=most)) == expected
    assert list(polled(fetched, max_bytes=data.draw(st.integers(1, 300)))) == expected


def polled(fetched: list[FetchedRecords], **limits: int) -> Iterator[Row]:
    """As a consumer does: again and again, from where it was told to go on."""
    fetched = list(fetched)
    while fetched:
        batch, next_offsets = to_record_batch(fetched, **limits)
        assert batch.num_rows <= limits.get("max_records", batch.num_rows)
        yield from rows_of_columns(batch)
        went_on = False
        for place, offset in next_offsets.items():
            (one,) = [one for one in fetched if one.partition == place.partition]
            went_on |= offset > one.from_offset or offset == end_offset(one)
            position = fetched.index(one)
            if offset == end_offset(one):
                del fetched[position]
            else:
                fetched[position] = one._replace(from_offset=offset)
        assert went_on, "the same rows would come for ever"


def test_where_to_go_on() -> None:
    first = some(plain(10, 5), plain(20, 5, Codec.LZ4), partition=1, from_offset=12)
    second = some(plain(7, 2), partition=2, from_offset=7)
    place, other = TopicPartition("orders", 1), TopicPartition("orders", 2)
    for limit, expected in [
        (1, {place: 13}),
        (2, {place: 14}),
        (3, {place: 15}),  # the batch ends here, and what follows is not known yet
        (4, {place: 21}),
        (8, {place: 25, other: 7}),
        (9, {place: 25, other: 8}),
        (10, {place: 25, other: 9}),
        (11, {place: 25, other: 9}),
    ]:
        batch, next_offsets = to_record_batch([first, second], limit)
        assert batch.num_rows == min(limit, 10)
        assert next_offsets == expected, limit


def test_control_batches_and_gaps_count() -> None:
    control = build_batch(
        [StoredRecord(3, 1, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        base_offset=3,
        is_control=True,
        is_transactional=True,
    )
    batch, next_offsets = to_record_batch([some(control, from_offset=2)])
    assert (batch.num_rows, next_offsets) == (0, {TopicPartition("orders", 0): 4})
    batch, next_offsets = to_record_batch([some(plain(0, 3), control)])
    assert (batch.num_rows, next_offsets) == (3, {TopicPartition("orders", 0): 4})


def test_aborted_transactions() -> None:
    records = [StoredRecord(0, 1, None, b"no")]
    aborted = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    fetched = some(aborted, plain(1, 1), aborted=((5, 0),))
    assert [row[1] for row in in_one([fetched])] == [b"v1"]


def test_nothing_fetched() -> None:
    batch, next_offsets = to_record_batch([])
    assert (batch.num_rows, batch.schema, next_offsets) == (0, SCHEMA, {})
    batch, next_offsets = to_record_batch([some(from_offset=4)])
    assert (batch.num_rows, next_offsets) == (0, {TopicPartition("orders", 0): 4})


def test_columns_outlive_what_was_fetched() -> None:
    data = plain(0, 3)
    batch, _ = to_record_batch([FetchedRecords("t", 0, memoryview(data), 0)])
    data[:] = bytes(len(data))
    assert batch.column("value").to_pylist() == [b"v0", b"v1", b"v2"]


def test_records_before_a_damaged_batch_are_handed_out_first() -> None:
    for damaged in (
        _flipped_bit(plain(3, 2)),
        _recoded(plain(3, 2), lambda payload: payload.__setitem__(0, 9)),
    ):
        for codec in Codec:
            fetched = some(plain(0, 3, codec), damaged, plain(5, 1))
            batch, next_offsets = to_record_batch([fetched])
            assert batch.num_rows == 3
            assert next_offsets == {TopicPartition("orders", 0): 3}
            with pytest.raises(CorruptBatch, match="orders-0: "):
                to_record_batch([fetched._replace(from_offset=3)])


def _flipped_bit(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


def _recoded(batch: bytearray, change: object) -> bytearray:
    """The batch with its payload changed and the CRC right again."""
    payload = bytearray(open_payload(batch))
    change(payload)  # type: ignore[operator]
    batch[HEADER_SIZE:] = payload
    struct.pack_into(">I", batch, CRC_POSITION, compute_crc(batch))
    return batch


def test_old_formats_are_named() -> None:
    old = bytearray(100)
    old[11], old[16] = 88, 1
    with pytest.raises(KafkaError, match=r"orders-0: .*v1, which is not supported"):
        to_record_batch([some(old)])


# ---- malicious bytes


def tampered(chance: random.Random, payload: bytearray) -> bytes:
    """The payload after a few changes without sense: lengths will mostly be wrong."""
    for _ in range(chance.randrange(1, 4)):
        position = chance.randrange(len(payload)) if payload else 0
        kind = chance.randrange(5)
        if kind == 0 and payload:
            payload[position] = chance.randrange(256)
        elif kind == 1 and payload:
            payload[position] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del payload[position : position + chance.randrange(1, 4)]
        elif kind == 3:
            payload[position : position + 10] = b"\xff" * 9 + bytes([chance.choice([0, 1, 2, 0x7F])])
        else:
            payload[position:position] = chance.randbytes(chance.randrange(12))
    return bytes(payload)


def odd_number(chance: random.Random, number: int) -> bytes:
    """A number, mostly; or another, or one that is written longer than need be, or too long."""
    encoded = encode_varint(number)
    match chance.randrange(60):
        case 0:
            return encoded[:-1] + bytes([encoded[-1] | 0x80]) + b"\x80" * chance.randrange(3) + b"\0"
        case 1:
            return b"\xff" * 9 + bytes([chance.choice([0, 1, 2, 3, 0x7F, 0x81])])
        case 2:
            return b"\x80" * chance.randrange(8, 11) + bytes([chance.choice([0, 1, 2])])
        case 3:
            return encode_varint(chance.choice([-1, -2, 2**31, 2**62, -(2**63), 2**63 - 1, number + 1]))
    return encoded


def odd_field(chance: random.Random) -> bytes:
    data = chance.choice([None, b"", b"value", b"\xc3\xbc", bytes(70), b"\xff"])
    return odd_number(chance, -1) if data is None else odd_number(chance, len(data)) + data


def odd_records(chance: random.Random, count: int) -> bytes:
    """Records whose lengths are right and whose fields are odd."""
    payload = b""
    for index in range(count):
        pairs = chance.choice([0, 0, 1, 2])
        body = b"\0" + odd_number(chance, chance.choice([0, -1, 10**12, 2**63 - 1, -(2**63)]))
        body += odd_number(chance, index) + odd_field(chance) + odd_field(chance) + odd_number(chance, pairs)
        for _ in range(pairs):
            body += odd_field(chance) + odd_field(chance)
        payload += odd_number(chance, len(body)) + body
    return payload


def mutated(chance: random.Random) -> FetchedRecords:
    """A batch whose payload or header was tampered with, and whose CRC is right."""
    count = chance.choice([1, 2, 3, 20])
    if chance.random() < 0.5:
        payload = odd_records(chance, count)
    else:
        payload = tampered(chance, bytearray(open_payload(plain(0, count))))
    header = {
        "records_count": chance.choice([count] * 12 + [count + 1, count - 1, -1, 2**31 - 1]),
        "last_offset_delta": chance.choice([count - 1] * 8 + [count, 2**31 - 1, 0]),
        "base_offset": chance.choice([0] * 6 + [5, 2**62]),
        "base_timestamp": chance.choice([1, 1, 0, -1, -(2**63), 2**63 - 1]),
        "attributes": chance.choice([0] * 8 + [8, Codec.LZ4, Codec.SNAPPY]),
    }
    if header["records_count"] == 0:
        header["attributes"] = 0
    changed = assemble_batch(payload, leader_epoch=0, max_timestamp=chance.choice([1, -(2**63)]), **header)
    return some(changed, from_offset=header["base_offset"] + chance.choice([0, 0, 0, 1]))


def fuzz(seed: int, rounds: int) -> tuple[int, int]:
    """How many batches were accepted and refused; both decoders must be of one mind about each."""
    accepted = refused = 0
    for number in range(seed, seed + rounds):
        fetched = mutated(random.Random(number))
        try:
            expected = rows_of_objects([fetched])
        except CorruptBatch as error:
            with pytest.raises(CorruptBatch) as caught:
                to_record_batch([fetched])
            assert str(error) in str(caught.value), number
            refused += 1
        else:
            assert in_one([fetched]) == expected, number
            accepted += 1
    return accepted, refused


def test_mutated_payloads_are_read_alike_or_refused_alike() -> None:
    seed = int(os.environ.get("KLAMM_SEED", random.randrange(10**9)))
    print(f"KLAMM_SEED={seed}")
    accepted, refused = fuzz(seed, FUZZ_ROUNDS)
    assert accepted > FUZZ_ROUNDS / 20
    assert refused > FUZZ_ROUNDS / 4


@pytest.mark.long
def test_nothing_is_read_or_written_out_of_bounds() -> None:
    """The same with kernels that check each index."""
    code = (
        "import random\n"
        "from tests.records.test_columns import check_bounds_are_checked, fuzz\n"
        "check_bounds_are_checked()\n"
        "print(fuzz(random.randrange(10**9), 3000))\n"
    )
    done = run_with_checks("-c", code)
    assert done.returncode == 0, done.stderr


def check_bounds_are_checked() -> None:
    """Run in the other process: does a kernel complain when it is given too short an array?"""
    import numpy as np

    from klamm.records.columns import copy_fields

    data = np.zeros(4, np.uint8)
    data.flags.writeable = False
    with pytest.raises(IndexError):
        copy_fields(data, np.zeros(1, np.int64), np.array([0, 5], np.int32), 0, 1, np.zeros(9, np.uint8))


@given(
    name=st.binary(max_size=8) | st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_names_of_headers_need_not_be_utf8(name: bytes) -> None:
    """Both decoders hand out the whole batch; records keep the bytes, columns show them."""
    batch = build_batch([StoredRecord(0, 1, None, None, (("x" * len(name), b""),))])
    if name:
        _recoded(batch, lambda payload: payload.__setitem__(slice(-1 - len(name), -1), name))
    assert [row[-1] for row in in_one([some(batch)])] == [[(name.decode("utf-8", "backslashreplace"), b"")]]
    ((decoded, _),) = decode_records(parse_header(batch), open_payload(batch)).headers[0]
    assert decoded.encode("utf-8", "surrogateescape") == name
    again = build_batch([StoredRecord(0, 1, None, None, ((decoded, b""),))])
    assert again == batch, "whoever sends it on sends what was there"


def test_every_lead_byte_of_utf8() -> None:
    """All of them, with what may follow and what may just not, as Python sees them."""
    for tail in (b"", b"\x80", b"\x80\x80"):
        for lead in range(0x80, 256):
            for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF):
                test_names_of_headers_need_not_be_utf8.hypothesis.inner_test(bytes([lead, second]) + tail)
