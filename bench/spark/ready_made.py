"""The ceiling of a Python source: ready-made Arrow batches in our schema, with nothing fetched or decoded.

What a real source takes longer than this one is its own; the rest is Spark's way from Python into the JVM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_klamm.rows import MAX_BATCH_ROWS
from pyspark_klamm.source import KlammSource

PARTITION_COUNT = 6


@dataclass
class Share(InputPartition):
    """The rows of one task."""

    rows: int


class ReadyMade(DataSource):
    """Options: `rows` in all, `size` of a value in bytes, rows of a `batch` (as many as our source's)."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> StructType:
        return KlammSource({}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        batch_rows = int(self.options.get("batch", MAX_BATCH_ROWS))
        return ReadyMadeReader(schema, int(self.options["rows"]), int(self.options["size"]), batch_rows)


class ReadyMadeReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, size: int, batch_rows: int) -> None:
        self._schema, self._rows, self._size, self._batch_rows = schema, rows, size, batch_rows

    def partitions(self) -> list[InputPartition]:
        return [Share(self._rows // PARTITION_COUNT) for _ in range(PARTITION_COUNT)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Share)
        batch = make_batch(self._schema, self._size, self._batch_rows)
        left = partition.rows
        while left:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= min(left, batch.num_rows)


def make_batch(schema: StructType, size: int, rows: int) -> pyarrow.RecordBatch:
    data = os.urandom(rows * size)
    kinds = to_arrow_schema(schema, timezone="UTC")
    columns = {
        "key": [None] * rows,
        "value": [data[first : first + size] for first in range(0, len(data), size)],
        "topic": ["ready-made"] * rows,
        "partition": [0] * rows,
        "offset": range(rows),
        "timestamp": range(rows),
        "timestampType": [0] * rows,
    }
    arrays = [pyarrow.array(columns[field.name], field.type) for field in kinds]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=kinds)
