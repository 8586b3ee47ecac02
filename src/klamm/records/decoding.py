"""Decodes the bytes of a batch into Python values: one pass over the payload, into one list per field.

This is the only decoder that makes Python objects; consumers and the broker's own readers use it, and
the kernels of `columns.py` refuse the same records. Malformed records raise `CorruptBatch`:
- every length is checked against the bytes that are there, so nothing is read beyond the payload;
- numbers have at most 64 bits;
- offsets ascend and stay within the batch's range, timestamps fit 64 bits;
- the records fill the payload exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, TypeVar

from klamm.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    parse_header,
)
from klamm.records.compression import DECOMPRESSED_LIMIT_BYTES, decompress
from klamm.records.runs import LEAST_RUN, decode_run, may_begin

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
RecordT = TypeVar("RecordT", bound="tuple[Any, ...]")

NAME_ERRORS = "surrogateescape"
"""The error handler for names of headers. Brokers do not check names, so a name may hold bytes that are not
UTF-8; this handler decodes and encodes them without a loss."""

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
"""The names of the two values of the timestamp type flag."""

_VARINT_BITS = 64
_SUCCESSIVE = list(range(0, 2 * 8192, 2))
"""The offset deltas of a batch without gaps, in zigzag form; long enough for all but the largest batches."""
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1


class DecodedRecords(NamedTuple):
    """The records of one batch, field by field, with absolute offsets and timestamps."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


class _Fields(NamedTuple):
    """One list per field, as long as the batch has records; deltas are still in zigzag form."""

    offset_deltas: list[int]
    timestamp_deltas: list[int]
    keys: list[Any]
    values: list[Any]
    headers: list[Headers]


def open_payload(
    batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES, header: BatchHeader | None = None
) -> memoryview:
    """The records of one whole batch, decompressed if need be. A caller that has parsed the header passes
    it."""
    header = header or parse_header(batch)
    payload = memoryview(batch)[HEADER_SIZE : header.batch_length + LOG_OVERHEAD]
    codec = header.attributes & COMPRESSION_MASK
    if codec and header.records_count:  # compaction leaves empty batches that keep their codec
        return memoryview(decompress(codec, payload, limit))
    return payload


def decode_batch(
    batch: Buffer, record_class: type[RecordT], topic: str, partition: int, from_offset: int
) -> list[RecordT]:
    """The records of one whole batch from `from_offset` on, as tuples of `record_class`.

    The fields of `record_class` must be topic, partition, offset, timestamp, key, value, headers, timestamp
    type and leader epoch. The tuples are made without calling the class, which would take as long as all the
    rest.
    """
    header = parse_header(batch)
    decoded = _decode_columns(header, open_payload(batch, header=header))
    kind = TIMESTAMP_TYPES[header.attributes & LOG_APPEND_TIME_FLAG != 0]
    epoch = header.partition_leader_epoch
    constants = repeat(kind), repeat(epoch)
    fields: Iterable[tuple[Any, ...]] = zip(repeat(topic), repeat(partition), *decoded, *constants)
    records = list(map(tuple.__new__, repeat(record_class), fields))
    if from_offset > header.base_offset:
        return records[_count_before(decoded[0], from_offset) :]
    return records


def decode_records(header: BatchHeader, payload: Buffer) -> DecodedRecords:
    """The records of a decompressed payload."""
    return DecodedRecords(*_decode_columns(header, payload))


def _decode_columns(
    header: BatchHeader, payload: Buffer
) -> tuple[Sequence[int], Sequence[int], list[bytes | None], list[bytes | None], list[Headers]]:
    count = header.records_count
    if count < 0 or count > len(payload):
        raise CorruptBatch(f"the batch states {count} records, but they have {len(payload)} bytes")
    try:
        fields = _decode_fields(payload if type(payload) is bytes else bytes(payload), count)
    except IndexError:
        raise CorruptBatch("a record ends before its fields do") from None
    offset_deltas, timestamp_deltas, keys, values, headers = fields
    offsets = _absolute_offsets(header, offset_deltas)
    return offsets, _absolute_timestamps(header, timestamp_deltas), keys, values, headers


def _decode_fields(data: bytes, count: int) -> _Fields:
    """Decode all records, runs of records of one shape together (see `runs`). After each search for a run
    that found none, twice as many records are decoded singly before the next search."""
    fields = _Fields(_successive(count), [0] * count, [None] * count, [None] * count, [()] * count)
    position = index = 0
    look_from, pause = 0, 1
    while index < count:
        index, begin, position = _decode_singly(data, position, index, count, look_from, fields)
        run = None
        if count - index >= LEAST_RUN and may_begin(data, begin, position):
            run = decode_run(data, begin, position, index, count - index)
        if run is None:
            look_from = index + pause
            pause *= 2
            continue
        pause = 1
        until = index + len(run.values)
        position += (until - index) * (position - begin)
        fields.timestamp_deltas[index:until] = run.timestamp_deltas
        fields.keys[index:until] = run.keys
        fields.values[index:until] = run.values
        index = until
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the batch's last record")
    return fields


def _decode_singly(
    data: bytes, position: int, index: int, count: int, look_from: int, fields: _Fields
) -> tuple[int, int, int]:
    """Decode records from `index` on, up to the first from `look_from` on that is as long as the one before
    it.

    Returns the index after the last record decoded, and where that record begins and ends. Numbers of one and
    two bytes are read in place: a function call costs more than the rest of a field. Fields may run past the
    end of their record but not of the payload; the end of the record is checked last.
    """
    offset_deltas, timestamp_deltas, keys, values, headers = fields
    size = len(data)
    begin = position
    length = -1
    for current in range(index, count):
        begin = position
        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        length_before, length = length, number
        end = position + (number >> 1)
        if number & 1 or end > size:
            raise CorruptBatch("a record is longer than its batch")

        number = data[position + 1]  # after the attributes, which are unused
        position += 2
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        timestamp_deltas[current] = number

        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        offset_deltas[current] = number

        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        if not number & 1:  # an odd number is negative: no key
            start = position
            position += number >> 1
            keys[current] = data[start:position]

        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        if not number & 1:
            start = position
            position += number >> 1
            values[current] = data[start:position]

        if data[position]:
            headers[current], position = _decode_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise CorruptBatch("a record's length contradicts its fields")
        if length == length_before and current >= look_from:
            return current + 1, begin, position
    return count, begin, position


def _decode_headers(data: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    number, position = read_zigzag(data, position)
    count = number >> 1
    if number & 1 or count > record_end - position:
        raise CorruptBatch("a record states a negative number of headers, or more headers than it has bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        number, position = read_zigzag(data, position)
        name_end = position + (number >> 1)
        if number & 1 or name_end > record_end:
            raise CorruptBatch("a record header has no name, or its name is longer than the record")
        name = data[position:name_end].decode("utf-8", NAME_ERRORS)
        number, position = read_zigzag(data, name_end)
        if number & 1:
            headers.append((name, None))
        else:
            start = position
            position += number >> 1
            if position > record_end:
                raise CorruptBatch("the value of a record header is longer than its record")
            headers.append((name, data[start:position]))
    return tuple(headers), position


def read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    """A number of up to 64 bits, still in zigzag form, and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= _VARINT_BITS:
            raise CorruptBatch("a number in a record is longer than 64 bits")
    if number >> _VARINT_BITS:
        raise CorruptBatch("a number in a record is longer than 64 bits")
    return number, position


def _absolute_offsets(header: BatchHeader, deltas: list[int]) -> Sequence[int]:
    """The offsets for deltas in zigzag form. If compaction has not changed the batch, there are no gaps."""
    base = header.base_offset
    count = len(deltas)
    if deltas == _successive(count):
        if count > header.last_offset_delta + 1:
            raise _offsets_wrong()
        return range(base, base + count)
    previous = -1
    for delta in deltas:
        if delta <= previous or delta & 1:
            raise _offsets_wrong()
        previous = delta
    if previous >> 1 > header.last_offset_delta:
        raise _offsets_wrong()
    return [base + (delta >> 1) for delta in deltas]


def _successive(count: int) -> list[int]:
    return _SUCCESSIVE[:count] if count <= len(_SUCCESSIVE) else list(range(0, 2 * count, 2))


def _offsets_wrong() -> CorruptBatch:
    return CorruptBatch("the offsets of the batch's records do not ascend, or are outside the batch's range")


def _absolute_timestamps(header: BatchHeader, deltas: list[int]) -> Sequence[int]:
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return [header.max_timestamp] * len(deltas)
    base = header.base_timestamp
    largest = max(deltas, default=0)
    if not largest:
        return [base] * len(deltas)
    timestamps = [base - ((delta + 1) >> 1) if delta & 1 else base + (delta >> 1) for delta in deltas]
    if not _MIN_INT64 + largest <= base <= _MAX_INT64 - largest and (
        min(timestamps) < _MIN_INT64 or max(timestamps) > _MAX_INT64
    ):
        raise CorruptBatch("a record's timestamp does not fit 64 bits")
    return timestamps


def _count_before(offsets: Sequence[int], from_offset: int) -> int:
    if isinstance(offsets, range):
        return min(len(offsets), from_offset - offsets.start)
    return sum(offset < from_offset for offset in offsets)
