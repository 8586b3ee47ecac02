"""Reads the rows of a table's files. Runs in Spark's tasks, on any machine.

Rows have the columns of the query, which do not change while it runs: columns that a file does not have are
null, others that it has are left out. Partition columns are not in files; their values come from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from klamm.pipelines.tables.appended import CannotRead, TableFile
from klamm.pipelines.tables.files import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 10_000
"""Rows per batch for Spark: fewer cost more calls, more do not fit into caches."""

TASK_BYTES = 16 * 1024 * 1024
"""Files that are smaller together are read by one task."""


def grouped(files: Sequence[TableFile]) -> list[tuple[TableFile, ...]]:
    """The files of each task, in their order."""
    groups: list[list[TableFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.bytes > TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return [tuple(group) for group in groups]


def read_files(
    files: Sequence[TableFile], location: str, options: Mapping[str, str], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The rows of some files, as Spark takes them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from pyspark_klamm.worker_memory import freeze_loaded_objects

    wanted = to_arrow_schema(schema, timezone="UTC")
    store = Store(location, options)
    for file in files:
        yield from _read(store, file, wanted, location)
    freeze_loaded_objects()


def read_last(
    files: Sequence[TableFile], last: int, location: str, options: Mapping[str, str], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The last rows of the files that were written last."""
    left = last
    for file in sorted(files, key=lambda each: each.written_ms, reverse=True):
        if left <= 0:
            return
        batches = list(read_files([file], location, options, schema))
        if batches:
            rows = pa.Table.from_batches(batches)
            rows = rows.slice(max(0, rows.num_rows - left))
            left -= rows.num_rows
            yield from rows.to_batches()


def _read(store: Store, file: TableFile, wanted: pa.Schema, location: str) -> Iterator[pa.RecordBatch]:
    try:
        stream = store.system.open_input_file(file.path)
    except FileNotFoundError:
        raise CannotRead(
            f"the file {file.path} of version {file.version} of the table {location} is gone: vacuum removes "
            "files that the table does not need any more, after a week",
            advice="Replay the pipeline that reads it from earliest",
        ) from None
    with stream, pq.ParquetFile(stream) as parquet:
        spelled = {name.lower(): name for name in parquet.schema_arrow.names}
        there = {each.name: spelled[each.name.lower()] for each in wanted if each.name.lower() in spelled}
        values = {name.lower(): value for name, value in file.values.items()}
        # To pyarrow a dot in a name means a column inside another one.
        columns = None if any("." in name for name in there.values()) else list(there.values())
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            arrays = [
                batch.column(there[each.name]).cast(each.type)
                if each.name in there and each.name.lower() not in values
                else _constant(values.get(each.name.lower()), each.type, batch.num_rows)
                for each in wanted
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _constant(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """The value of a partition column, as the log writes it, for all rows of a file."""
    if not text:
        return pa.nulls(rows, kind)
    value: Any = text
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        value = moment if moment.tzinfo or kind.tz is None else moment.replace(tzinfo=UTC)
    elif pa.types.is_decimal(kind):
        value = Decimal(text)
    else:
        return pa.repeat(pa.scalar(text).cast(kind), rows)
    return pa.repeat(pa.scalar(value, kind), rows)
