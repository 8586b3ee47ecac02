"""Turns Arrow columns into the payloads of batches, ready to be sent. Needs klamm[arrow].

Columns of many types are converted to one form with 64-bit ends, mostly without copying their data. The
kernels of `packing.py` then choose partitions, cut batches and write records. No Python object is made per
row.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from klamm.records import packing
from klamm.records.batch import HEADER_SIZE
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

METHODS = {"murmur2": packing.MURMUR2, "crc32": packing.CRC32}
"""How a key's partition is computed, for each value of the producer's setting `partitioner`."""


LEAST_SPARE_BYTES = 1024 * 1024
MOST_SPARE_BYTES = 8 * 1024 * 1024
"""Output memory between these sizes, as a producer's `send_arrow` needs it, is used again. To allocate less
costs little."""

MOST_SPARE_OUTPUTS = 2
"""Outputs that are kept for reuse: one is given back about when the next is needed."""

_spare: deque[Array] = deque(maxlen=MOST_SPARE_OUTPUTS)


class ColumnError(ValueError):
    """A column is missing or cannot be sent. The message names the column, its type and the types allowed."""


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """The records of one batch. `batch` has room before them for the header, which `seal_batch` writes."""

    partition: int
    batch: memoryview
    count: int
    base_timestamp: int
    max_timestamp: int


class _Bytes(NamedTuple):
    """A column of bytes in the form that kernels read."""

    ends: Array
    data: Array
    bits: Array
    first_bit: int


class _Headers(NamedTuple):
    ends: Array
    bits: Array
    first_bit: int
    names: _Bytes
    values: _Bytes

    @property
    def parts(self) -> tuple[Array, Array, int, Array, Array, Array, int, Array, Array, Array, int]:
        return (self.ends, self.bits, self.first_bit, *self.names, *self.values)


def encode_columns(
    batch: pa.RecordBatch | pa.Table,
    *,
    value: str | None,
    key: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    partitions_count: int,
    batch_size: int,
    now_ms: int,
    partitioner: str = "murmur2",
    rotation: Sequence[int] | None = None,
) -> list[EncodedRecords]:
    """The rows as batches of at most `batch_size` bytes, header included; a larger row gets its own batch.

    A row with a partition goes there. A row with a key and no partition goes where `partitioner` sends the
    key. All other rows go to the partitions of `rotation` in turn (all partitions, unless given), a batch to
    each. Rows without a timestamp get `now_ms`. The rows of a partition keep their order.
    """
    rows = batch.num_rows
    if not rows:
        return []
    columns = _Columns(
        _bytes_column(batch, key, "key", rows),
        _bytes_column(batch, value, "value", rows),
        _timestamps(batch, timestamp, rows, now_ms),
        _headers_column(batch, headers),
    )
    state = np.zeros(packing.STATE_FIELDS, np.int64)
    chosen = _partitions(batch, partition, rows, partitions_count)
    if key is not None:
        method = METHODS[partitioner]
        status = packing.hash_keys(
            method, partitions_count, *columns.keys, packing.CRC32_TABLE, chosen, state
        )
        _check(status, state, key)
    header_sizes = np.ones(rows, np.int64)  # a count of 0
    if columns.headers is not _NO_HEADERS:
        _check(packing.measure_headers(*columns.headers.parts, header_sizes, state), state, headers)
    plan = _Plan(rows)
    batches = packing.plan_batches(
        *columns.keys,
        *columns.values,
        columns.timestamps,
        header_sizes,
        chosen,
        np.array(range(partitions_count) if rotation is None else rotation, np.int64),
        max(batch_size - HEADER_SIZE, 0),
        np.full(partitions_count, -1, np.int64),
        plan.batch_of,
        plan.body_sizes,
        plan.partitions,
        plan.counts,
        plan.sizes,
        plan.base_timestamps,
        plan.max_timestamps,
        state,
    )
    _check(batches, state, key, value)
    return plan.write(batches, columns)


class _Columns(NamedTuple):
    """The columns to send, each in the form that kernels read."""

    keys: _Bytes
    values: _Bytes
    timestamps: Array
    headers: _Headers


class _Plan:
    """Which row goes into which batch, and the fields of each batch. There are at most as many as rows."""

    def __init__(self, rows: int) -> None:
        self.batch_of = np.empty(rows, np.int64)
        self.body_sizes = np.empty(rows, np.int64)
        self.partitions = np.empty(rows, np.int64)
        self.counts = np.empty(rows, np.int64)
        self.sizes = np.empty(rows, np.int64)
        self.base_timestamps = np.empty(rows, np.int64)
        self.max_timestamps = np.empty(rows, np.int64)

    def write(self, batches: int, columns: _Columns) -> list[EncodedRecords]:
        """Write all batches, one after the other, into one buffer, so that no record is copied twice."""
        sizes = self.sizes[:batches]
        ends = np.cumsum(sizes + HEADER_SIZE)
        output = _output(int(ends[-1]))
        packing.write_records(
            *columns.keys,
            *columns.values,
            columns.timestamps,
            *columns.headers.parts,  # type: ignore[arg-type]  # mypy loses count of the arguments
            self.batch_of,
            self.body_sizes,
            self.base_timestamps,
            ends - sizes,
            np.zeros(batches, np.int64),
            output,
        )
        data = output.data
        fields = (self.partitions, self.sizes, ends, self.counts, self.base_timestamps, self.max_timestamps)
        return [
            EncodedRecords(partition, data[end - size - HEADER_SIZE : end], count, base, newest)
            for partition, size, end, count, base, newest in zip(
                *(field[:batches].tolist() for field in fields), strict=True
            )
        ]


def _output(size: int) -> Array:
    """Memory for the batches. The memory of an earlier call is used again if it is large enough, at most
    twice as large, and no longer referenced: page faults of new memory take longer than writing the
    batches."""
    if not LEAST_SPARE_BYTES <= size <= MOST_SPARE_BYTES:
        return np.empty(size, np.uint8)
    try:
        memory = _spare.pop()
    except IndexError:
        memory = _NO_BYTES
    if not size <= memory.size <= 2 * size:
        memory = np.empty(size + size // 8, np.uint8)  # a little more: the next call may need it
    output = memory[:size]
    weakref.finalize(output, _spare.append, memory).atexit = False
    return output


# ---- columns into one form


def _column(batch: pa.RecordBatch | pa.Table, name: str) -> Any:
    """The one column of this name; a column of an extension type is cast to its storage type."""
    found = batch.schema.get_all_field_indices(name)
    if len(found) != 1:
        there = "no column" if not found else f"{len(found)} columns"
        names = ", ".join(map(repr, batch.schema.names))
        raise ColumnError(f"the table has {there} named {name!r}; its columns are {names}")
    column = batch.column(found[0])
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return column


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_null(kind)
        or (types.is_dictionary(kind) and _is_bytes(kind.value_type))
    )


def _bytes_column(batch: pa.RecordBatch | pa.Table, name: str | None, role: str, rows: int) -> _Bytes:
    if name is None:
        bits = np.zeros((rows + 7) // 8, np.uint8)  # all of them null
        return _Bytes(_read_only(np.zeros(rows + 1, np.int64)), _NO_BYTES, _read_only(bits), 0)
    column = _column(batch, name)
    if not _is_bytes(column.type):
        raise ColumnError(
            f"column {name!r} is {column.type}; a {role} must be binary or string: cast or encode it first"
        )
    return _as_bytes(column)


def _as_bytes(column: Any) -> _Bytes:
    """The column in the form that kernels read, cast if it has another type. A slice is used as it is,
    without copying the data before it."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if not _has_ends(column.type):
        column = column.cast(pa.large_binary())
    column = _in_one(column)
    if len(column) == 0:
        return _NO_ROWS
    bits, ends, data = column.buffers()
    width = np.int64 if _has_long_ends(column.type) else np.int32
    return _Bytes(
        _read_only(
            _view(ends, width)[column.offset : column.offset + len(column) + 1].astype(np.int64, copy=False)
        ),
        _view(data, np.uint8),
        _view(bits, np.uint8) if column.null_count else _NO_BYTES,
        column.offset,
    )


def _has_ends(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind) or _has_long_ends(kind))


def _has_long_ends(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _in_one(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    # Arrow copies also what is in one piece already.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _view(buffer: pa.Buffer | None, kind: Any) -> Array:
    return _read_only(np.empty(0, kind) if buffer is None else np.frombuffer(buffer, kind))


def _elements(column: pa.Array, kind: Any) -> Array:
    """The numbers of an array without nulls. `to_numpy` imports pandas, which takes a quarter of a second."""
    return _view(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _read_only(array: Array) -> Array:
    """The array as the one type that the kernels are compiled for."""
    array.flags.writeable = False
    return array


_NO_BYTES = _view(None, np.uint8)
_NO_ROWS = _Bytes(_read_only(np.zeros(1, np.int64)), _NO_BYTES, _NO_BYTES, 0)
_NO_HEADERS = _Headers(_view(None, np.int64), _NO_BYTES, 0, _NO_ROWS, _NO_ROWS)


def _timestamps(batch: pa.RecordBatch | pa.Table, name: str | None, rows: int, now_ms: int) -> Array:
    if name is None:
        values = np.full(rows, now_ms, np.int64)
    else:
        column = _column(batch, name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        elif not pa.types.is_integer(column.type):
            raise ColumnError(
                f"column {name!r} is {column.type}; a timestamp must be a timestamp, or whole milliseconds"
            )
        values = _integers(column, name, now_ms)
        if values.min() < 0:
            row = int(values.argmin())
            raise ColumnError(
                f"column {name!r}, row {row}: the timestamp is before 1970, which records cannot have"
            )
    return _read_only(values)


def _partitions(batch: pa.RecordBatch | pa.Table, name: str | None, rows: int, count: int) -> Array:
    if name is None:
        return np.full(rows, packing.NO_PARTITION, np.int32)
    column = _column(batch, name)
    if not pa.types.is_integer(column.type):
        raise ColumnError(f"column {name!r} is {column.type}; a partition must be a whole number")
    values = _integers(column, name, packing.NO_PARTITION)
    wrong = (values < 0) | (values >= count)
    if column.null_count:
        wrong &= np.asarray(_in_one(column.is_valid()).to_numpy(zero_copy_only=False), bool)
    if wrong.any():
        row = int(wrong.argmax())
        raise ColumnError(
            f"column {name!r}, row {row}: partition {values[row]} does not exist; the topic has {count}"
        )
    return values.astype(np.int32)


def _integers(column: Any, name: str, missing: int) -> Array:
    try:
        column = _in_one(column.cast(pa.int64()))
    except pa.ArrowInvalid as error:
        raise ColumnError(f"column {name!r} is {column.type} and does not fit 64 bits: {error}") from None
    if column.null_count:  # else pandas would be imported for nothing
        column = column.fill_null(missing)
    return _elements(column, np.int64).copy()


def _headers_column(batch: pa.RecordBatch | pa.Table, name: str | None) -> _Headers:
    if name is None:
        return _NO_HEADERS
    column = _in_one(_column(batch, name))
    kind = column.type
    types = pa.types
    if types.is_null(kind):
        return _NO_HEADERS
    if not types.is_map(kind) and not (
        (types.is_list(kind) or types.is_large_list(kind)) and _has_pairs(kind.value_type)
    ):
        raise _wrong_headers(name, kind)
    ends = _elements(column.offsets, np.int64 if types.is_large_list(kind) else np.int32).astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    if not 0 <= first <= last <= len(column.values):
        raise ColumnError(f"column {name!r}: the Arrow array is malformed; its validate(full=True) says how")
    pairs = column.values.slice(first, last - first).flatten()
    is_name_first = types.is_map(kind) or kind.value_type.names[0] == "key"
    names, values = pairs if is_name_first else reversed(pairs)
    if not _is_bytes(names.type) or not _is_bytes(values.type):
        raise _wrong_headers(name, kind)
    try:
        names = names.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise ColumnError(f"column {name!r} has a header whose name is not UTF-8: {error}") from None
    return _Headers(
        _read_only(ends - first),
        _view(column.buffers()[0] if column.null_count else None, np.uint8),
        column.offset,
        _as_bytes(names),
        _as_bytes(values),
    )


def _has_pairs(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and sorted(kind.names) == ["key", "value"]


def _wrong_headers(name: str, kind: pa.DataType) -> ColumnError:
    return ColumnError(
        f"column {name!r} is {kind}; headers must be list<struct<key: string, value: binary>> "
        "or map<string, binary>"
    )


def _check(status: int, state: Array, *names: str | None) -> None:
    if status >= 0:
        return
    columns = " or ".join(repr(name) for name in names if name is not None)
    where = f"column {columns}, row {int(state[packing.FAILED_ROW])}"
    if status == packing.NAMELESS_HEADER:
        raise ColumnError(f"{where}: a header has no name")
    if status == packing.TOO_LARGE:
        raise ColumnError(f"{where}: the record has more than {packing.MAX_RECORD_BYTES} bytes")
    raise ColumnError(f"{where}: the Arrow array is malformed; its validate(full=True) says how")
