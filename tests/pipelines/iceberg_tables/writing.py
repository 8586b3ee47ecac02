"""Iceberg tables without Spark: rows written as a task writes them, and committed as a driver does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from klamm.pipelines.errors import Place
from klamm.pipelines.iceberg_tables.table import IcebergTable
from klamm.pipelines.tables.files import write_files
from klamm.pipelines.tables.table import Batch, WrittenFile

OWNER = "shop.table"
NAME = "lake.shop.orders"
PLACE = Place(Path("orders.py"), 1)
NUMBERS = StructType().add("n", LongType())


def make_table(folder: Path) -> IcebergTable:
    """A table in a catalog of its own, which is a file; another object of the same table each time."""
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": str(folder / "warehouse"),
    }
    return IcebergTable(NAME, settings)


def write(
    table: IcebergTable,
    rows: Sequence[Mapping[str, Any]],
    schema: StructType = NUMBERS,
    partition_by: tuple[str, ...] = (),
) -> list[WrittenFile]:
    """Make the table ready for the rows, and write them as one task."""
    assert table.adapt(schema, partition_by, OWNER, PLACE) == {}
    target = table.target(schema, partition_by, "test")
    batches = iter([pa.RecordBatch.from_pylist(list(rows), target.schema)]) if rows else iter(())
    return [WrittenFile.of(report) for batch in write_files(batches, target) for report in batch.to_pylist()]


def batch_of(numbers: range, batch: int, attempt: int = 1) -> Batch:
    """A batch of the topic `orders`, whose records have the numbers as offsets."""
    start, end = {"orders": {"0": numbers.start}}, {"orders": {"0": numbers.stop}}
    return Batch(OWNER, attempt, batch, start, end, f"id.{attempt}")


def append(table: IcebergTable, numbers: range, batch: int, attempt: int = 1) -> None:
    """Add a batch with one row for each number."""
    files = write(table, [{"n": number} for number in numbers])
    table.append(files, batch_of(numbers, batch, attempt), pa.schema([]), ())


def rows_in(table: IcebergTable) -> list[dict[str, Any]]:
    newest = table.newest()
    assert newest is not None
    rows: list[dict[str, Any]] = newest.scan().to_arrow().to_pylist()
    return rows


def numbers_in(table: IcebergTable) -> list[int]:
    return sorted(row["n"] for row in rows_in(table))
