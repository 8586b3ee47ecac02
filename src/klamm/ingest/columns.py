"""Makes Arrow columns for `send_arrow` from the records of a file. A core; needs klamm[arrow]."""

from __future__ import annotations

from typing import Any

from klamm.ingest.lines import Split, binary_array
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

FILE_HEADER = "klamm.file"
OFFSET_HEADER = "klamm.file.offset"

VALUE, KEY, PARTITION, HEADERS = "value", "key", "partition", "headers"


def record_batch(
    data: Array,
    split: Split,
    partitions: Array,
    *,
    key: bytes | None,
    origin: tuple[str, int] | None,
) -> Any:
    """The records with their partitions; `origin` is the file's path and the position of `data` in it."""
    columns = {VALUE: binary_array(data, split.starts, split.ends), PARTITION: _numbers(partitions)}
    if key is not None:
        columns[KEY] = _repeated(key, split.count)
    if origin is not None:
        path, first_byte = origin
        columns[HEADERS] = _origins(path.encode(errors="surrogateescape"), split.starts + first_byte)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _repeated(value: bytes, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(_numbers(np.zeros(count, np.int8)), _binaries(value))


def _origins(path: bytes, positions: Array) -> Any:
    """Two headers for each record: the path, and the position as a decimal number."""
    count = len(positions)
    indices = _numbers(np.tile(np.array([0, 1], np.int8), count))
    names = pa.DictionaryArray.from_arrays(indices, _binaries(FILE_HEADER.encode(), OFFSET_HEADER.encode()))
    # Alternating paths and positions, taken from one array of all positions with the path at its end.
    places = np.empty(2 * count, np.int32)
    places[0::2] = count
    places[1::2] = np.arange(count, dtype=np.int32)
    decimals = _numbers(positions).cast(pa.string()).cast(pa.binary())
    values = pa.concat_arrays([decimals, _binaries(path)]).take(_numbers(places))
    pairs = pa.StructArray.from_arrays([names.cast(pa.binary()).cast(pa.string()), values], ["key", "value"])
    return pa.ListArray.from_arrays(_numbers(np.arange(0, 2 * count + 1, 2, dtype=np.int32)), pairs)


# pyarrow.array would do the same, but imports pandas to check its argument: a quarter of a second per start.


def _numbers(values: Array) -> Any:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)


def _binaries(*values: bytes) -> Any:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))], 0
    )
