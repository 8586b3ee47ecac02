"""Decodes runs, that is records of one shape in a row, by columns: slices do most of the work, not a loop.

Records have the same shape if all their lengths are equal and they have no headers: measurements, ids, and
other records of a fixed size. Byte n of all of them is then one slice with a stride. A run is found by
comparing such slices with the bytes of one record that `decoding.py` has decoded and checked. Every byte that
is not key, value, attributes or timestamp is compared, so no record is accepted here that would be refused
there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LEAST_RUN = 8
"""The shortest run: to find a shorter one takes as long as decoding its records one by one."""

_TABLE_SIZE = 8192
_MORE = 0x80
_OFFSETS_OF_ONE_BYTE = 64
# The first and the second byte of the offset deltas below `_TABLE_SIZE`, as zigzag varints. For larger deltas
# both repeat.
_FIRST_BYTES = bytes(2 * delta & 0x7F | _MORE for delta in range(_TABLE_SIZE))
_LAST_SECOND_BYTES = bytes(2 * delta >> 7 for delta in range(_TABLE_SIZE))
_SECOND_BYTES = bytes(2 * delta >> 7 | _MORE for delta in range(_TABLE_SIZE))


class Run(NamedTuple):
    """Records that follow each other: deltas of timestamps in zigzag form, keys and values."""

    timestamp_deltas: list[int]
    keys: list[Any]
    values: list[Any]


class _Shape(NamedTuple):
    """Where a record and its parts begin. Keys and values follow their lengths."""

    start: int
    timestamp: int
    offset: int
    key_length: int
    key: int
    value_length: int
    value: int
    headers: int
    end: int


def may_begin(data: bytes, start: int, end: int) -> bool:
    """A quick guess: False if the records from `end` on cannot have the shape of the record at `start`. If
    True, they may still differ."""
    size = end - start
    column = data[start : end + (LEAST_RUN - 1) * size + 1 : size]
    return column == data[start : start + 1] * (LEAST_RUN + 1)


def decode_run(data: bytes, start: int, end: int, index: int, most: int) -> Run | None:
    """The records from `index` on that have the shape of the record before them, which is at `start`.

    That record has been checked. Returns at most `most` records; None if they are fewer than `LEAST_RUN` or
    their offsets have gaps.
    """
    shape = _shape_of(data, start, end)
    size = end - start
    offset_size = shape.key_length - shape.offset
    until_longer = (_OFFSETS_OF_ONE_BYTE if offset_size == 1 else _TABLE_SIZE) - index % _TABLE_SIZE
    count = _count_equal(
        data,
        [
            *range(start, shape.timestamp - 1),  # before the timestamp are the attributes, which are unused
            *range(shape.offset + 2, shape.key_length),
            *range(shape.key_length, shape.key),
            *range(shape.value_length, shape.value),
            shape.headers,
        ],
        size,
        min(most, (len(data) - end) // size, until_longer),
    )
    if count < LEAST_RUN or data[shape.headers] or shape.headers + 1 != end:
        return None
    if not _has_offsets(data, shape.offset, offset_size, size, index, count):
        return None
    deltas = _numbers(data, range(shape.timestamp, shape.offset), size, count)
    if deltas is None:
        return None
    keys = _fields(data, shape.key_length, shape.key, shape.value_length, size, count)
    values = _fields(data, shape.value_length, shape.value, shape.headers, size, count)
    return Run(deltas, keys, values)


def _shape_of(data: bytes, start: int, end: int) -> _Shape:
    timestamp = _behind_number(data, start) + 1
    offset = _behind_number(data, timestamp)
    key_length = _behind_number(data, offset)
    key = _behind_number(data, key_length)
    value_length = _behind_field(data, key_length, key)
    value = _behind_number(data, value_length)
    headers = _behind_field(data, value_length, value)
    return _Shape(start, timestamp, offset, key_length, key, value_length, value, headers, end)


def _behind_number(data: bytes, place: int) -> int:
    while data[place] & _MORE:
        place += 1
    return place + 1


def _behind_field(data: bytes, length_at: int, start: int) -> int:
    zigzag = _number(data[length_at:start])
    return start if zigzag & 1 else start + (zigzag >> 1)


def _count_equal(data: bytes, places: list[int], size: int, most: int) -> int:
    """How many records have, at all these places, the same bytes as the record before them."""
    count = most
    for place in places:
        if count < LEAST_RUN:
            break
        column = _column(data, place, size, count)
        byte = data[place : place + 1]
        if column != byte * count:
            count -= len(column.lstrip(byte))
    return count


def _column(data: bytes, place: int, size: int, count: int) -> bytes:
    """The byte of each of `count` records that corresponds to the byte at `place` of the record before
    them."""
    return data[place + size : place + count * size + 1 : size]


def _has_offsets(data: bytes, place: int, offset_size: int, size: int, index: int, count: int) -> bool:
    """True if the first two bytes of the offset deltas from `index` on are those of deltas without gaps."""
    first = _column(data, place, size, count)
    if offset_size == 1:
        return first == bytes(range(2 * index, 2 * (index + count), 2))
    part = slice(index % _TABLE_SIZE, index % _TABLE_SIZE + count)
    second = _column(data, place + 1, size, count)
    return first == _FIRST_BYTES[part] and second == (
        _LAST_SECOND_BYTES[part] if offset_size == 2 else _SECOND_BYTES[part]
    )


def _numbers(data: bytes, places: range, size: int, count: int) -> list[int] | None:
    """The numbers that the records have at these places; None if a number has more or fewer bytes."""
    *continued, last = [_column(data, place, size, count) for place in places]
    if not last.isascii() or any(min(column) < _MORE for column in continued):
        return None
    if not continued:
        return list(last)
    numbers = list(continued[0])
    for place, column in enumerate((*continued[1:], last), start=1):
        # Minus 1: the highest bit of the byte before, which only says that a byte follows, was added too.
        numbers = [number + ((byte - 1) << 7 * place) for number, byte in zip(numbers, column, strict=True)]
    return numbers


def _number(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))


def _fields(data: bytes, length_at: int, start: int, end: int, size: int, count: int) -> list[Any]:
    """The keys, or values, of the run; all None if the length is odd in zigzag form, that is negative."""
    if data[length_at] & 1:
        return [None] * count
    length = end - start
    return [data[place : place + length] for place in range(start + size, start + size * count + 1, size)]
