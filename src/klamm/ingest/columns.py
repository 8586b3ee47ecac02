"""Makes Arrow columns for `send_arrow` from the records of a file. A core; needs klamm[arrow]."""

from __future__ import annotations

from typing import Any

from klamm.ingest.lines import Split, binary_array
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

FILE_HEADER = "klamm.file"
OFFSET_HEADER = "klamm.file.offset"
UNPARSED_HEADER = "klamm.unparsed"
"""Why a record is the line itself and not its JSON."""

VALUE, KEY, PARTITION, HEADERS = "value", "key", "partition", "headers"


def record_batch(
    data: Array,
    split: Split,
    partitions: Array,
    *,
    key: bytes | None,
    origin: tuple[str, int] | None,
    parsed: tuple[Any, Any] | None = None,
) -> Any:
    """The records with their partitions; `origin` is the file's path and the position of `data` in it.

    `parsed` has what the lines became (`parsing.py`): their values, and why some stay as they are.
    """
    values, unparsed = parsed or (binary_array(data, split.starts, split.ends), None)
    columns = {VALUE: values, PARTITION: _numbers(partitions)}
    if key is not None:
        columns[KEY] = _repeated(key, split.count)
    if origin is not None or unparsed is not None:
        columns[HEADERS] = _headers(split, origin, unparsed)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _repeated(value: bytes, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(_numbers(np.zeros(count, np.int8)), _binaries(value))


def _headers(split: Split, origin: tuple[str, int] | None, unparsed: Any) -> Any:
    """The headers of each record: where its line was, and why it was not parsed."""
    pairs = []
    counts = np.zeros(split.count, np.int32)
    if origin is not None:
        path, first_byte = origin
        pairs.append(_origins(path.encode(errors="surrogateescape"), split.starts + first_byte))
        counts += 2
    origins = int(counts.sum())
    reasons = pa.nulls(0, pa.string()) if unparsed is None else unparsed.drop_null()
    left = np.zeros(split.count, bool) if unparsed is None else unparsed.is_valid().to_numpy(False)
    counts += left
    ends = np.cumsum(counts, dtype=np.int32)
    names = pa.DictionaryArray.from_arrays(
        _numbers(np.zeros(len(reasons), np.int8)), _binaries(UNPARSED_HEADER.encode())
    )
    pairs.append(_pairs(names, reasons.cast(pa.binary())))
    # All pairs by their records: first those of the origin, then the one of a line that was not parsed.
    places = np.empty(int(counts.sum()), np.int64)
    is_reason = np.zeros(len(places), bool)
    is_reason[ends[left] - 1] = True
    places[is_reason] = origins + np.arange(len(reasons))
    places[~is_reason] = np.arange(origins)
    found = pa.concat_arrays(pairs).take(_numbers(places))
    return pa.ListArray.from_arrays(_numbers(np.append(np.int32(0), ends)), found)


def _pairs(names: Any, values: Any) -> Any:
    return pa.StructArray.from_arrays([names.cast(pa.binary()).cast(pa.string()), values], ["key", "value"])


def _origins(path: bytes, positions: Array) -> Any:
    """Two headers for each record, one after the other: the path, and the position as a decimal number."""
    count = len(positions)
    indices = _numbers(np.tile(np.array([0, 1], np.int8), count))
    names = pa.DictionaryArray.from_arrays(indices, _binaries(FILE_HEADER.encode(), OFFSET_HEADER.encode()))
    # Alternating paths and positions, taken from one array of all positions with the path at its end.
    places = np.empty(2 * count, np.int32)
    places[0::2] = count
    places[1::2] = np.arange(count, dtype=np.int32)
    decimals = _numbers(positions).cast(pa.string()).cast(pa.binary())
    values = pa.concat_arrays([decimals, _binaries(path)]).take(_numbers(places))
    return _pairs(names, values)


# pyarrow.array would do the same, but imports pandas to check its argument: a quarter of a second per start.


def _numbers(values: Array) -> Any:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)


def _binaries(*values: bytes) -> Any:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))], 0
    )
