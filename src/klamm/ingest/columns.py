"""Records of a file as Arrow columns, ready for `send_arrow`. A core; needs klamm[arrow]."""

from __future__ import annotations

from typing import Any

from klamm.ingest.lines import Split, binary_array
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

FILE_HEADER = "klamm.file"
OFFSET_HEADER = "klamm.offset"

VALUE, KEY, PARTITION, HEADERS = "value", "key", "partition", "headers"


def record_batch(
    data: Array,
    split: Split,
    partitions: Array,
    *,
    key: bytes | None,
    origin: tuple[str, int] | None,
) -> Any:
    """The records with a partition each; `origin` is the file's path and where in it `data` begins."""
    columns = {VALUE: binary_array(data, split.starts, split.ends), PARTITION: pa.array(partitions)}
    if key is not None:
        columns[KEY] = _repeated(key, split.count)
    if origin is not None:
        path, first_byte = origin
        columns[HEADERS] = _origins(path.encode(errors="surrogateescape"), split.starts + first_byte)
    return pa.record_batch(columns)


def _repeated(value: bytes, count: int) -> Any:
    indices = pa.array(np.zeros(count, np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))


def _origins(path: bytes, positions: Array) -> Any:
    """For each record two headers: the path, and the position in decimals."""
    count = len(positions)
    indices = pa.array(np.tile(np.array([0, 1], np.int8), count))
    names = pa.DictionaryArray.from_arrays(indices, pa.array([FILE_HEADER, OFFSET_HEADER]))
    # Paths and positions in turn: one dictionary of all positions, and the path behind them.
    places = np.empty(2 * count, np.int32)
    places[0::2] = count
    places[1::2] = np.arange(count, dtype=np.int32)
    decimals = pa.array(positions).cast(pa.string()).cast(pa.binary())
    values = pa.concat_arrays([decimals, pa.array([path], pa.binary())]).take(pa.array(places))
    pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * count + 1, 2, dtype=np.int32)), pairs)
