"""Kernels that turn Arrow columns into the payloads of batches, many partitions at once. Needs klamm[arrow].

- `hash_keys` chooses the partitions of rows with a key, exactly as Java's and librdkafka's producers do;
- `measure_headers` computes how many bytes the headers of each row need;
- `plan_batches` gives rows without a partition to all partitions in turn, and cuts the rows of each partition
  into batches;
- `write_records` then writes each row to the end of its batch. Nothing is sorted: a partition's rows keep
  their order.

A column is passed as (ends, data, bits, first bit), with 64-bit ends and without bits if nothing is null.
Ends that descend or are beyond the data are refused, so nothing is read outside of a column. `plan_batches`
computes the sizes of everything that `write_records` writes.
"""

from __future__ import annotations

from typing import Any

from klamm.records.kernels import (
    BYTES,
    INT32S,
    INT64,
    INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_INT64S,
    READ_ONLY_UINT32S,
    Array,
    inlined,
    kernel,
)
from klamm.records.kernels import numpy as np

# How the partition of a key is computed.
MURMUR2 = 0
CRC32 = 1

# Kernels return a number of batches, or one of these negative numbers.
MALFORMED = -1
TOO_LARGE = -2
NAMELESS_HEADER = -3

NO_PARTITION = -1

# The fields of `state`, in which kernels describe a failure.
FAILED_ROW = 0
STATE_FIELDS = 1

MAX_RECORD_BYTES = 2**31 - 1
"""The length of a record is a 32-bit number."""

_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_MORE = np.uint64(0x80)
_BYTE = np.uint64(0xFF)
_UINT32 = np.uint64(0xFFFFFFFF)
_MURMUR_SEED = np.uint64(0x9747B28C)
_MURMUR_FACTOR = np.uint64(0x5BD1E995)
_POSITIVE = np.uint64(0x7FFFFFFF)


def _crc32_table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    table.flags.writeable = False
    return table


CRC32_TABLE = _crc32_table()


@inlined
def _is_valid(bits: Any, first_bit: Any, row: Any) -> Any:
    if bits.size == 0:
        return True
    bit = first_bit + row
    return (bits[bit >> 3] >> (bit & 7)) & 1 != 0


@inlined
def _is_sound(ends: Any, data: Any, row: Any) -> Any:
    return 0 <= ends[row] <= ends[row + 1] <= data.size


@inlined
def _varint_size(number: Any) -> Any:
    """How many bytes a signed number takes as a varint."""
    zigzag = np.uint64((number << 1) ^ (number >> 63))
    size = np.int64(1)
    while zigzag >= _MORE:
        zigzag >>= _SEVEN
        size += 1
    return size


@inlined
def _write_varint(output: Any, position: Any, number: Any) -> Any:
    zigzag = np.uint64((number << 1) ^ (number >> 63))
    while zigzag >= _MORE:
        output[position] = np.uint8(zigzag & _BYTE) | np.uint8(0x80)
        zigzag >>= _SEVEN
        position += 1
    output[position] = np.uint8(zigzag)
    return position + 1


@inlined
def _field_size(ends: Any, bits: Any, first_bit: Any, row: Any) -> Any:
    """How many bytes a nullable field takes, its length included."""
    if not _is_valid(bits, first_bit, row):
        return np.int64(1)
    length = ends[row + 1] - ends[row]
    return _varint_size(length) + length


@inlined
def _write_field(
    output: Any, position: Any, ends: Any, data: Any, bits: Any, first_bit: Any, row: Any
) -> Any:
    if not _is_valid(bits, first_bit, row):
        output[position] = np.uint8(1)  # a length of -1
        return position + 1
    length = ends[row + 1] - ends[row]
    position = _write_varint(output, position, length)
    source = np.uint64(ends[row])
    target = np.uint64(position)
    for index in range(np.uint64(length)):
        output[target + index] = data[source + index]
    return position + length


@inlined
def _murmur2(data: Any, start: Any, length: Any) -> Any:
    state = _MURMUR_SEED ^ np.uint64(length)
    position = start
    for _ in range(length >> 2):
        word = (
            np.uint64(data[position])
            | np.uint64(data[position + 1]) << np.uint64(8)
            | np.uint64(data[position + 2]) << np.uint64(16)
            | np.uint64(data[position + 3]) << np.uint64(24)
        )
        word = word * _MURMUR_FACTOR & _UINT32
        word = (word ^ (word >> np.uint64(24))) * _MURMUR_FACTOR & _UINT32
        state = (state * _MURMUR_FACTOR & _UINT32) ^ word
        position += 4
    if length & 3:
        rest = np.uint64(0)
        for index in range(length & 3):
            rest |= np.uint64(data[position + index]) << np.uint64(8 * index)
        state = (state ^ rest) * _MURMUR_FACTOR & _UINT32
    state = (state ^ (state >> np.uint64(13))) * _MURMUR_FACTOR & _UINT32
    return state ^ (state >> np.uint64(15))


@inlined
def _crc32(data: Any, start: Any, length: Any, table: Any) -> Any:
    state = _UINT32
    for index in range(length):
        state = (state >> np.uint64(8)) ^ np.uint64(table[(state ^ np.uint64(data[start + index])) & _BYTE])
    return state ^ _UINT32


@kernel(
    INT64,
    INT64,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_UINT32S,
    INT32S,
    INT64S,
)
def hash_keys(
    method: int,
    partitions: int,
    ends: Array,
    data: Array,
    bits: Array,
    first_bit: int,
    crc32_table: Array,
    chosen: Array,
    state: Array,
) -> int:
    """Choose a partition for each row that has a key and no partition yet."""
    for row in range(chosen.size):
        if chosen[row] != NO_PARTITION or not _is_valid(bits, first_bit, row):
            continue
        if not _is_sound(ends, data, row):
            state[FAILED_ROW] = row
            return MALFORMED
        length = ends[row + 1] - ends[row]
        if method == MURMUR2:
            hashed = _murmur2(data, ends[row], length) & _POSITIVE
            chosen[row] = np.int32(hashed % np.uint64(partitions))
        elif length:  # librdkafka treats an empty key as no key
            hashed = _crc32(data, ends[row], length, crc32_table)
            chosen[row] = np.int32(hashed % np.uint64(partitions))
    return 0


@kernel(
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    INT64S,
    INT64S,
)
def measure_headers(
    list_ends: Array,
    list_bits: Array,
    list_first_bit: int,
    name_ends: Array,
    name_data: Array,
    name_bits: Array,
    name_first_bit: int,
    value_ends: Array,
    value_data: Array,
    value_bits: Array,
    value_first_bit: int,
    sizes: Array,
    state: Array,
) -> int:
    """Compute how many bytes the headers of each row take, their count included."""
    last = min(name_ends.size, value_ends.size) - 1
    for row in range(sizes.size):
        state[FAILED_ROW] = row
        size = np.int64(1)
        if _is_valid(list_bits, list_first_bit, row):
            if not 0 <= list_ends[row] <= list_ends[row + 1] <= last:
                return MALFORMED
            size = _varint_size(list_ends[row + 1] - list_ends[row])
            for header in range(list_ends[row], list_ends[row + 1]):
                if not _is_valid(name_bits, name_first_bit, header):
                    return NAMELESS_HEADER
                if not _is_sound(name_ends, name_data, header) or not _is_sound(
                    value_ends, value_data, header
                ):
                    return MALFORMED
                size += _field_size(name_ends, name_bits, name_first_bit, header)
                size += _field_size(value_ends, value_bits, value_first_bit, header)
        sizes[row] = size
    return 0


@kernel(
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    INT64S,
    INT32S,
    INT64S,
    INT64,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
)
def plan_batches(
    key_ends: Array,
    key_data: Array,
    key_bits: Array,
    key_first_bit: int,
    value_ends: Array,
    value_data: Array,
    value_bits: Array,
    value_first_bit: int,
    timestamps: Array,
    header_sizes: Array,
    chosen: Array,
    rotation: Array,
    batch_bytes: int,
    open_batches: Array,
    batch_of: Array,
    body_sizes: Array,
    partitions: Array,
    counts: Array,
    sizes: Array,
    base_timestamps: Array,
    max_timestamps: Array,
    state: Array,
) -> int:
    """Assign each row to a batch; returns how many batches there are.

    A batch takes rows of its partition until the next row would make it larger than `batch_bytes`; a row that
    is larger by itself gets its own batch. Rows without a partition go to one partition until its batch is
    full, then to the next partition of `rotation`. The caller sets `open_batches` to -1 for each partition;
    the arrays about batches have room for as many batches as there are rows.
    """
    batches = 0
    turn = 0
    for row in range(chosen.size):
        state[FAILED_ROW] = row
        if not _is_sound(key_ends, key_data, row) or not _is_sound(value_ends, value_data, row):
            return MALFORMED
        fixed = (
            1
            + _field_size(key_ends, key_bits, key_first_bit, row)
            + _field_size(value_ends, value_bits, value_first_bit, row)
            + header_sizes[row]
        )
        if fixed > MAX_RECORD_BYTES - 32:
            return TOO_LARGE
        is_sticky = chosen[row] == NO_PARTITION
        partition = rotation[turn] if is_sticky else np.int64(chosen[row])
        timestamp = timestamps[row]
        body = np.int64(0)
        record = np.int64(0)
        batch = np.int64(-1)
        for attempt in range(2):
            batch = open_batches[partition]
            if batch >= 0:
                body = fixed + _varint_size(timestamp - base_timestamps[batch]) + _varint_size(counts[batch])
                record = _varint_size(body) + body
                if sizes[batch] + record <= batch_bytes:
                    break
                batch = np.int64(-1)
                if is_sticky and attempt == 0:
                    turn = (turn + 1) % rotation.size
                    partition = rotation[turn]
                    continue
            break
        if batch < 0:
            batch = np.int64(batches)
            batches += 1
            open_batches[partition] = batch
            partitions[batch] = partition
            counts[batch] = 0
            sizes[batch] = 0
            base_timestamps[batch] = timestamp
            max_timestamps[batch] = timestamp
            body = fixed + 2  # deltas of 0
            record = _varint_size(body) + body
        batch_of[row] = batch
        body_sizes[row] = body
        counts[batch] += 1
        sizes[batch] += record
        max_timestamps[batch] = max(max_timestamps[batch], timestamp)
    return batches


@kernel(
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    READ_ONLY_INT64S,
    READ_ONLY_BYTES,
    READ_ONLY_BYTES,
    INT64,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    INT64S,
    BYTES,
)
def write_records(
    key_ends: Array,
    key_data: Array,
    key_bits: Array,
    key_first_bit: int,
    value_ends: Array,
    value_data: Array,
    value_bits: Array,
    value_first_bit: int,
    timestamps: Array,
    list_ends: Array,
    list_bits: Array,
    list_first_bit: int,
    name_ends: Array,
    name_data: Array,
    name_bits: Array,
    name_first_bit: int,
    header_value_ends: Array,
    header_value_data: Array,
    header_value_bits: Array,
    header_value_first_bit: int,
    batch_of: Array,
    body_sizes: Array,
    base_timestamps: Array,
    positions: Array,
    counts: Array,
    output: Array,
) -> int:
    """Write each row to its batch. The caller sets `positions` to where the batches begin and `counts` to
    zeros; at the end, `positions` are where the batches end. Without headers `list_ends` is empty.
    """
    for row in range(batch_of.size):
        batch = batch_of[row]
        position = _write_varint(output, positions[batch], body_sizes[row])
        output[position] = np.uint8(0)  # attributes, unused
        position = _write_varint(output, position + 1, timestamps[row] - base_timestamps[batch])
        position = _write_varint(output, position, counts[batch])
        position = _write_field(output, position, key_ends, key_data, key_bits, key_first_bit, row)
        position = _write_field(output, position, value_ends, value_data, value_bits, value_first_bit, row)
        if list_ends.size == 0 or not _is_valid(list_bits, list_first_bit, row):
            output[position] = np.uint8(0)
            position += 1
        else:
            position = _write_varint(output, position, list_ends[row + 1] - list_ends[row])
            for header in range(list_ends[row], list_ends[row + 1]):
                position = _write_field(
                    output, position, name_ends, name_data, name_bits, name_first_bit, header
                )
                position = _write_field(
                    output,
                    position,
                    header_value_ends,
                    header_value_data,
                    header_value_bits,
                    header_value_first_bit,
                    header,
                )
        positions[batch] = position
        counts[batch] += 1
    return 0
