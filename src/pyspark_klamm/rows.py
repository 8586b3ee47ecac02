"""Decodes fetched records into Arrow batches with Spark's schema.

The columns come from `klamm.records.arrow`, which makes no object per record. Here timestamps become
microseconds, empty headers become null, and columns get the names and nullability of Spark's schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from klamm.model.ids import TopicPartition
from klamm.records.arrow import to_record_batch
from klamm.records.fetched import FetchedRecords
from klamm.records.kernels import Array
from klamm.records.kernels import numpy as np
from klamm.records.kernels import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_BATCH_ROWS = 10_000
"""Rows per batch for Spark: fewer cost more calls, more do not fit into caches."""

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""How much of a compressed answer is decompressed at a time."""

_KEY, _VALUE, _TOPIC, _PARTITION, _OFFSET, _TIMESTAMP, _TIMESTAMP_TYPE, _HEADERS = range(8)
_MICROSECONDS_PER_MS = 1000
_MOST_MS = (2**63 - 1) // _MICROSECONDS_PER_MS


class RowDecoder:
    """Decodes records for one schema."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._has_headers = len(self._schema) > _HEADERS

    def __call__(self, fetched: FetchedRecords, end: int) -> Iterator[pa.RecordBatch]:
        """The rows before offset `end`, in order."""
        place = TopicPartition(fetched.topic, fetched.partition)
        while True:
            columns, reached = to_record_batch([fetched], max_bytes=MAX_BATCH_BYTES)
            next_offset = reached.get(place, fetched.from_offset)
            if columns.num_rows:
                yield from self._batches(columns, end)
            if next_offset <= fetched.from_offset or next_offset >= end:
                return
            fetched = fetched._replace(from_offset=next_offset)

    def _batches(self, columns: pa.RecordBatch, end: int) -> Iterator[pa.RecordBatch]:
        rows = columns.num_rows
        offsets = _numbers(columns.column(_OFFSET), np.int64)
        if offsets[-1] >= end:
            rows = int(np.searchsorted(offsets, end))
        arrays = columns.columns[:_HEADERS]
        arrays[_TIMESTAMP] = self._microseconds(columns.column(_TIMESTAMP))
        if self._has_headers:
            arrays.append(self._headers(columns.column(_HEADERS)))
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for first in range(0, rows, MAX_BATCH_ROWS):
            yield whole.slice(first, min(MAX_BATCH_ROWS, rows - first))

    def _microseconds(self, column: pa.Array) -> pa.Array:
        """Milliseconds as microseconds. Times out of range become the nearest possible one."""
        times = np.clip(_numbers(column, np.int64), -_MOST_MS, _MOST_MS) * _MICROSECONDS_PER_MS
        kind = self._schema.field(_TIMESTAMP).type
        return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(times)], 0)

    def _headers(self, column: pa.Array) -> pa.Array:
        kind = self._schema.field(_HEADERS).type
        ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
        has_some = ends[1:] != ends[:-1]
        validity = pa.py_buffer(np.packbits(has_some, bitorder="little"))
        nulls = len(column) - int(np.count_nonzero(has_some))
        pairs = column.values.cast(kind.value_type)
        buffers = [validity, column.buffers()[1]]
        return pa.Array.from_buffers(kind, len(column), buffers, nulls, children=[pairs])


def _numbers(column: pa.Array, kind: type) -> Array:
    return np.frombuffer(column.buffers()[1], kind, len(column))
