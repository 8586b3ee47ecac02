"""Kernels that turn decompressed payloads into the buffers of Arrow columns. Needs klamm[arrow].

Three passes, none of which makes a Python object per record:
- `scan_batches` checks the records one after the other and writes the columns of fixed width: offsets,
  timestamps, where keys and values end in their columns, validity bits, where each field begins in its
  payload;
- `copy_fields` then copies keys, or values, into a buffer of exactly the right size;
- `copy_headers` does the same for headers, if there are any.

Invariants: whatever the bytes are, the kernels read nothing outside of a payload and write nothing outside of
an array, and they refuse exactly those batches that `decoding.py` refuses. `scan_batches` checks every
length; the later passes rely on the positions that it wrote, over the same bytes.
"""

from __future__ import annotations

from typing import Any

from klamm.records.kernels import (
    BYTES,
    INT32S,
    INT64,
    INT64_TABLE,
    INT64S,
    READ_ONLY_BYTES,
    Array,
    inlined,
    kernel,
)
from klamm.records.kernels import numpy as np

# The columns of the table that describes batches to `scan_batches`.
START = 0
END = 1
COUNT = 2
BASE_OFFSET = 3
LAST_OFFSET_DELTA = 4
BASE_TIMESTAMP = 5
TIMESTAMP_TYPE = 6
APPEND_TIMESTAMP = 7

# The fields of `state`, which `scan_batches` carries over from one source of bytes to the next.
ROWS = 0
KEY_NULLS = 1
VALUE_NULLS = 2
HEADER_NAME_BYTES = 3
HEADER_VALUE_BYTES = 4
NEXT_OFFSET = 5
BATCH = 6
STATE_FIELDS = 7

# The results of `scan_batches`.
DONE = 0
FULL = 1
CORRUPT = 2

_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_LOW_BITS = np.uint64(0x7F)
_LAST_SHIFT = np.uint64(63)
_CUT = np.int64(-1)


@inlined
def _read_varint(data: Any, position: Any, end: Any) -> Any:
    """A number, still in zigzag form, and the position after it: -1 if it is cut off or longer than 64
    bits."""
    if position + 1 < end:  # nearly all numbers have one or two bytes
        byte = np.uint64(data[position])
        if byte <= _LOW_BITS:
            return byte, position + 1
        second = np.uint64(data[position + 1])
        if second <= _LOW_BITS:
            return (byte & _LOW_BITS) | (second << _SEVEN), position + 2
    number = np.uint64(0)
    shift = np.uint64(0)
    while position < end:
        byte = np.uint64(data[position])
        position += 1
        if shift == _LAST_SHIFT and byte > _ONE:
            return number, _CUT
        number |= (byte & _LOW_BITS) << shift
        if byte <= _LOW_BITS:
            return number, position
        shift += _SEVEN
    return number, _CUT


@inlined
def _find_field(data: Any, position: Any, end: Any) -> Any:
    """The positions where a nullable field begins (-1: null) and ends (-1: malformed)."""
    number, position = _read_varint(data, position, end)
    if position < 0:
        return _CUT, _CUT
    if number & _ONE:
        return _CUT, position
    length = np.int64(number >> _ONE)
    if length > end - position:
        return _CUT, _CUT
    return position, position + length


@inlined
def _scan_headers(data: Any, position: Any, end: Any) -> Any:
    """The count of headers, the bytes of their names and of their values, the position where the first header
    begins, and the position where the last one ends (-1: malformed)."""
    names = np.int64(0)
    values = np.int64(0)
    number, position = _read_varint(data, position, end)
    count = np.int64(number >> _ONE)
    start = position
    if position < 0 or number & _ONE or count > end - position:
        return count, names, values, start, _CUT
    for _ in range(count):
        begin, position = _find_field(data, position, end)
        if begin < 0 or position < 0:
            return count, names, values, start, _CUT
        names += position - begin
        begin, position = _find_field(data, position, end)
        if position < 0:
            return count, names, values, start, _CUT
        if begin >= 0:
            values += position - begin
    return count, names, values, start, position


@inlined
def _copy_bytes(source: Any, start: Any, target: Any, position: Any, length: Any) -> Any:
    """Copy bytes. Indices are unsigned, because numba checks the sign of signed ones for every byte. The
    caller has checked the bounds."""
    start = np.uint64(start)
    position = np.uint64(position)
    for index in range(np.uint64(length)):
        target[position + index] = source[start + index]


@inlined
def _set_bit(bits: Any, index: Any) -> Any:
    bits[index >> 3] |= np.uint8(1 << (index & 7))


@kernel(
    INT64,
    READ_ONLY_BYTES,
    INT64_TABLE,
    INT64,
    INT64,
    INT64S,
    INT64S,
    INT64S,
    INT32S,
    INT64S,
    INT32S,
    BYTES,
    INT64S,
    INT32S,
    BYTES,
    INT64S,
    INT32S,
)
def scan_batches(
    data: Array,
    batches: Array,
    from_offset: int,
    max_rows: int,
    state: Array,
    offsets: Array,
    timestamps: Array,
    timestamp_types: Array,
    key_starts: Array,
    key_ends: Array,
    key_bits: Array,
    value_starts: Array,
    value_ends: Array,
    value_bits: Array,
    header_starts: Array,
    header_ends: Array,
) -> int:
    """Read the records of batches in `data` from `from_offset` on, and add them to the rows in the arrays.

    The arrays have room for `max_rows` rows; arrays of ends have a 0 before the first end. A malformed batch
    adds no rows, and neither do the batches after it. If there is no room for all rows of a batch, the rest
    of the batch is checked nevertheless, and `state` has the offset to continue from.
    """
    for batch in range(batches.shape[0]):
        state[BATCH] = batch
        position = batches[batch, START]
        payload_end = batches[batch, END]
        base_offset = batches[batch, BASE_OFFSET]
        last_delta = batches[batch, LAST_OFFSET_DELTA]
        base_timestamp = batches[batch, BASE_TIMESTAMP]
        timestamp_type = np.int32(batches[batch, TIMESTAMP_TYPE])
        row = state[ROWS]
        key_nulls = state[KEY_NULLS]
        value_nulls = state[VALUE_NULLS]
        name_bytes = state[HEADER_NAME_BYTES]
        header_value_bytes = state[HEADER_VALUE_BYTES]
        next_offset = state[NEXT_OFFSET]
        is_full = False
        previous_delta = np.int64(-1)
        if batches[batch, COUNT] < 0 or position < 0 or position > payload_end or payload_end > data.size:
            return CORRUPT
        for _ in range(batches[batch, COUNT]):
            number, position = _read_varint(data, position, payload_end)
            length = np.int64(number >> _ONE)
            if position < 0 or number & _ONE or length > payload_end - position or length < 1:
                return CORRUPT
            end = position + length
            time, position = _read_varint(data, position + 1, end)  # after the attributes, which are unused
            if position < 0:
                return CORRUPT
            number, position = _read_varint(data, position, end)
            delta = np.int64(number >> _ONE)
            if position < 0 or number & _ONE or delta <= previous_delta or delta > last_delta:
                return CORRUPT
            previous_delta = delta
            key_start, key_end = _find_field(data, position, end)
            if key_end < 0:
                return CORRUPT
            value_start, value_end = _find_field(data, key_end, end)
            if value_end < 0 or value_end >= end:
                return CORRUPT
            header_count = np.int64(0)
            names = np.int64(0)
            header_values = np.int64(0)
            header_start = position = value_end + 1
            if data[value_end]:
                header_count, names, header_values, header_start, position = _scan_headers(
                    data, value_end, end
                )
            if position != end:
                return CORRUPT
            timestamp = batches[batch, APPEND_TIMESTAMP]
            if timestamp_type == 0:
                time_delta = np.int64(time >> _ONE) ^ -np.int64(time & _ONE)
                timestamp = base_timestamp + time_delta
                if ((base_timestamp ^ timestamp) & (time_delta ^ timestamp)) < 0:
                    return CORRUPT
            if base_offset + delta < from_offset:
                continue
            if row >= max_rows:
                is_full = True
                continue
            offsets[row] = base_offset + delta
            timestamps[row] = timestamp
            timestamp_types[row] = timestamp_type
            key_starts[row] = key_start
            key_ends[row + 1] = key_ends[row]
            if key_start >= 0:
                key_ends[row + 1] += key_end - key_start
                _set_bit(key_bits, row)
            else:
                key_nulls += 1
            value_starts[row] = value_start
            value_ends[row + 1] = value_ends[row]
            if value_start >= 0:
                value_ends[row + 1] += value_end - value_start
                _set_bit(value_bits, row)
            else:
                value_nulls += 1
            header_starts[row] = header_start
            header_ends[row + 1] = header_ends[row] + header_count
            name_bytes += names
            header_value_bytes += header_values
            next_offset = base_offset + delta + 1
            row += 1
        if position != payload_end:
            return CORRUPT
        state[ROWS] = row
        state[KEY_NULLS] = key_nulls
        state[VALUE_NULLS] = value_nulls
        state[HEADER_NAME_BYTES] = name_bytes
        state[HEADER_VALUE_BYTES] = header_value_bytes
        state[NEXT_OFFSET] = next_offset if is_full else base_offset + last_delta + 1
        if is_full:
            return FULL
    return DONE


@kernel(INT64, READ_ONLY_BYTES, INT64S, INT32S, INT64, INT64, BYTES)
def copy_fields(data: Array, starts: Array, ends: Array, first: int, last: int, output: Array) -> int:
    """Copy the keys (or values) of the rows from `first` to before `last` to their places in their column."""
    for row in range(first, last):
        source = starts[row]
        target = ends[row]
        _copy_bytes(data, source, output, target, ends[row + 1] - target)
    return 0


@kernel(INT64, READ_ONLY_BYTES, INT64S, INT32S, INT64, INT64, INT32S, BYTES, INT32S, BYTES, BYTES)
def copy_headers(
    data: Array,
    starts: Array,
    ends: Array,
    first: int,
    last: int,
    name_ends: Array,
    names: Array,
    value_ends: Array,
    values: Array,
    value_bits: Array,
) -> int:
    """Copy the headers of the rows from `first` to before `last`; returns how many have no value."""
    nulls = 0
    for row in range(first, last):
        position = starts[row]
        for header in range(ends[row], ends[row + 1]):
            begin, position = _find_field(data, position, data.size)
            target = name_ends[header]
            _copy_bytes(data, begin, names, target, position - begin)
            name_ends[header + 1] = target + (position - begin)
            begin, position = _find_field(data, position, data.size)
            target = value_ends[header]
            value_ends[header + 1] = target
            if begin >= 0:
                _copy_bytes(data, begin, values, target, position - begin)
                value_ends[header + 1] = target + (position - begin)
                _set_bit(value_bits, header)
            else:
                nulls += 1
    return nulls
