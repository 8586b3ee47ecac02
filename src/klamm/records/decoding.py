"""Turning the bytes of a batch into Python values: one pass over the payload, into one list per field.

This is the only decoder that makes Python objects; consumers and the broker's own readers stand on it, and
the kernels of `columns.py` agree with it about what they refuse. Malformed records raise `CorruptBatch`:
- every length is checked against the bytes that are there, so nothing is read beyond the payload;
- numbers have at most 64 bits, header names are UTF-8;
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

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
RecordT = TypeVar("RecordT", bound="tuple[Any, ...]")

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
"""The words for the flag in a batch's attributes, by its value."""

_VARINT_BITS = 64
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1


class DecodedRecords(NamedTuple):
    """The records of one batch, field by field, with absolute offsets and timestamps."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


def open_payload(
    batch: Buffer, limit: int = DECOMPRESSED_LIMIT_BYTES, header: BatchHeader | None = None
) -> memoryview:
    """The records of one whole batch, decompressed if need be. Its header need not be parsed twice."""
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

    Its fields are topic, partition, offset, timestamp, key, value, headers, timestamp type, leader epoch.
    The tuples are made without calling the class, which would cost as much as all the rest.
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
    """The records of an opened payload."""
    return DecodedRecords(*_decode_columns(header, payload))


def _decode_columns(
    header: BatchHeader, payload: Buffer
) -> tuple[Sequence[int], Sequence[int], list[bytes | None], list[bytes | None], list[Headers]]:
    count = header.records_count
    if count < 0 or count > len(payload):
        raise CorruptBatch(f"the batch says {count} records, but has {len(payload)} bytes of them")
    try:
        fields = _decode_fields(payload if type(payload) is bytes else bytes(payload), count)
    except IndexError:
        raise CorruptBatch("a record ends before its fields do") from None
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"the name of a record header is not UTF-8: {error}") from None
    offset_deltas, timestamp_deltas, keys, values, headers = fields
    offsets = _absolute_offsets(header, offset_deltas)
    return offsets, _absolute_timestamps(header, timestamp_deltas), keys, values, headers


def _decode_fields(
    data: bytes, count: int
) -> tuple[list[int], list[int], list[Any], list[Any], list[Headers]]:
    """Offset and timestamp deltas still in zigzag form, keys, values, headers.

    Numbers of one and two bytes are read in place: a function call costs more than the rest of a field.
    Fields may run past their record's end but not past the payload's; the record's end is checked last.
    """
    size = len(data)
    offset_deltas = [0] * count
    timestamp_deltas = [0] * count
    keys: list[bytes | None] = [None] * count
    values: list[bytes | None] = [None] * count
    headers: list[Headers] = [()] * count
    position = 0
    for index in range(count):
        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
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
        timestamp_deltas[index] = number

        number = data[position]
        position += 1
        if number >= 0x80:
            byte = data[position]
            position += 1
            if byte < 0x80:
                number += (byte - 1) << 7
            else:
                number, position = read_zigzag(data, position - 2)
        offset_deltas[index] = number

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
            keys[index] = data[start:position]

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
            values[index] = data[start:position]

        if data[position]:
            headers[index], position = _decode_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise CorruptBatch("a record's length contradicts its fields")
    if position != size:
        raise CorruptBatch(f"{size - position} bytes follow the batch's last record")
    return offset_deltas, timestamp_deltas, keys, values, headers


def _decode_headers(data: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    number, position = read_zigzag(data, position)
    count = number >> 1
    if number & 1 or count > record_end - position:
        raise CorruptBatch("a record says it has fewer than no headers, or more than bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        number, position = read_zigzag(data, position)
        name_end = position + (number >> 1)
        if number & 1 or name_end > record_end:
            raise CorruptBatch("a record header has no name, or one longer than its record")
        name = data[position:name_end].decode()
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
    """A number of any length, still in zigzag form, and where it ends."""
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


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """A signed number of any length, and where it ends. Past the end of `data` it raises IndexError."""
    number = data[position]
    position += 1
    if number >= 0x80:
        number, position = read_zigzag(data, position - 1)
    return (number >> 1) ^ -(number & 1), position


def _absolute_offsets(header: BatchHeader, deltas: list[int]) -> Sequence[int]:
    """Offsets for deltas in zigzag form. A batch that compaction has not touched has them without gaps."""
    base = header.base_offset
    count = len(deltas)
    if deltas == list(range(0, 2 * count, 2)):
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


def _offsets_wrong() -> CorruptBatch:
    return CorruptBatch("the offsets of a batch's records do not ascend, or lie outside of the batch")


def _absolute_timestamps(header: BatchHeader, deltas: list[int]) -> Sequence[int]:
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return [header.max_timestamp] * len(deltas)
    base = header.base_timestamp
    timestamps = [base - ((delta + 1) >> 1) if delta & 1 else base + (delta >> 1) for delta in deltas]
    if timestamps and (min(timestamps) < _MIN_INT64 or max(timestamps) > _MAX_INT64):
        raise CorruptBatch("a record's timestamp does not fit 64 bits")
    return timestamps


def _count_before(offsets: Sequence[int], from_offset: int) -> int:
    if isinstance(offsets, range):
        return min(len(offsets), from_offset - offsets.start)
    return sum(offset < from_offset for offset in offsets)
