"""Drives the readers of the data source as Spark does, in this process and without a JVM.

What Spark would send between processes is pickled and offsets pass through JSON here, too. Whether Spark
itself agrees is for the tests with a session; these are quick, and can look closer.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pyspark_klamm import DefaultSource
from pyspark_klamm.offsets import JsonOffsets

Row = dict[str, Any]


def source(bootstrap: str, **options: object) -> DefaultSource:
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    return DefaultSource(CaseInsensitiveDict({"kafka.bootstrap.servers": bootstrap, **given}))


def batches(reader: Any, partitions: list[InputPartition], schema: Any) -> list[pyarrow.RecordBatch]:
    """What the tasks hand over, checked as Spark checks it."""
    reader = pickle.loads(pickle.dumps(reader))
    found = [each for one in partitions for each in reader.read(pickle.loads(pickle.dumps(one)))]
    wanted = to_arrow_schema(schema, timezone="UTC")
    for each in found:
        assert each.schema.equals(wanted), f"{each.schema} instead of {wanted}"
        each.validate(full=True)
    return found


def read_batches(bootstrap: str, **options: object) -> list[pyarrow.RecordBatch]:
    made = source(bootstrap, **options)
    reader = made.reader(made.schema())
    return batches(reader, reader.partitions(), made.schema())


def read(bootstrap: str, **options: object) -> list[Row]:
    return [row for batch in read_batches(bootstrap, **options) for row in batch.to_pylist()]


def values(rows: list[Row]) -> list[bytes | None]:
    return [row["value"] for row in rows]


class Stream:
    """One streaming query: call `trigger` for its batches."""

    def __init__(self, bootstrap: str, start: JsonOffsets | None = None, **options: object) -> None:
        made = source(bootstrap, **options)
        self._schema = made.schema()
        self.tasks_reader = pickle.dumps(made.streamReader(self._schema))
        self.reader: Any = made.streamReader(self._schema)
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()
        self.offset = _through_json(self.reader.initialOffset()) if start is None else start
        self.partitions: list[InputPartition] = []

    def latest(self, limit: ReadLimit | None = None) -> JsonOffsets:
        return _through_json(self.reader.latestOffset(self.offset, limit or self.limit))

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """One batch; nothing if there is nothing to do."""
        end = self.latest(limit)
        if end == self.offset:
            return []
        self.partitions = self.reader.partitions(self.offset, end)
        rows = self.read_partitions()
        self.offset = end
        return rows

    def read_partitions(self) -> list[Row]:
        found = batches(pickle.loads(self.tasks_reader), self.partitions, self._schema)
        return [row for each in found for row in each.to_pylist()]

    def take_all(self) -> list[Row]:
        return self.trigger(ReadAllAvailable())


def _through_json(offsets: JsonOffsets) -> JsonOffsets:
    return json.loads(json.dumps(offsets))  # type: ignore[no-any-return]
