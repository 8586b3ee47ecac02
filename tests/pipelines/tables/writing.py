"""Tables without Spark: rows that are written as a task writes them, and committed as a driver does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from klamm.pipelines.tables.files import Target, write_files
from klamm.pipelines.tables.table import Batch, Table, WrittenFile

OWNER = "shop.table"
SCHEMA = pa.schema([("n", pa.int64())])


def written(
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema = SCHEMA,
    partition_by: tuple[str, ...] = (),
    **settings: Any,
) -> list[WrittenFile]:
    """The files of one task that wrote these rows."""
    target = Target(table.location, schema, partition_by, options=table.options, **settings)
    batches = iter([pa.RecordBatch.from_pylist(list(rows), schema)]) if rows else iter(())
    return [WrittenFile.of(report) for batch in write_files(batches, target) for report in batch.to_pylist()]


def append(table: Table, numbers: range, batch: int, attempt: int = 1, owner: str = OWNER) -> None:
    """Add a batch with one row for each number; the records of the topic `orders` have them as offsets."""
    table.append(
        written(table, [{"n": number} for number in numbers]),
        Batch(owner, attempt, batch, {"orders": {"0": numbers.start}}, {"orders": {"0": numbers.stop}}),
        SCHEMA,
        (),
    )


def numbers_in(table: Table) -> list[int]:
    newest = Table(table.location, table.options).newest()
    assert newest is not None
    return sorted(newest.to_pyarrow_table(columns=["n"])["n"].to_pylist())


def make_table(tmp_path: Path, name: str = "orders") -> Table:
    return Table(str(tmp_path / name))
