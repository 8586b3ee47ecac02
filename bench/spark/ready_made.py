"""The ceiling of a Python source: ready-made Arrow batches in our schema, with nothing fetched or decoded.

The time of this source is what Spark needs to move batches from Python into the JVM. What a real source takes
longer is its own time.
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
from pyspark_klamm.worker_memory import freeze_loaded_objects

PARTITION_COUNT = 6
BATCH_BYTES = 4 * 1024 * 1024


@dataclass
class Share(InputPartition):
    """The rows of one task."""

    rows: int


class ReadyMade(DataSource):
    """Options: `rows` in all, `size` of a value in bytes."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> StructType:
        return KlammSource({}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(schema, int(self.options["rows"]), int(self.options["size"]))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, size: int) -> None:
        self._schema, self._rows, self._size = schema, rows, size

    def partitions(self) -> list[InputPartition]:
        return [Share(self._rows // PARTITION_COUNT) for _ in range(PARTITION_COUNT)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Share)
        batch = make_batch(self._schema, self._size)
        left = partition.rows
        while left:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= min(left, batch.num_rows)
        freeze_loaded_objects()


def make_batch(schema: StructType, size: int) -> pyarrow.RecordBatch:
    """As many rows as a batch of our data source has; with large values fewer, as a fetch has."""
    rows = min(MAX_BATCH_ROWS, BATCH_BYTES // size)
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
