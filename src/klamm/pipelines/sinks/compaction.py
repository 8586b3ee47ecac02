"""Merges the small folders of a table into larger ones, while others read it.

A run of neighbouring folders is merged into one; then the table's folder is exchanged for one with the merged
folder in their place (`LocalTable.replace`). A reader finds the table before or after the exchange, with each
row once. A reader that has listed the old table and opens its files afterwards fails, and has to read again.
Tables are therefore compacted seldom (`CompactionPolicy.interval_s`).

`choose_run` takes the newest folders, and older ones as long as they are not much larger than all newer ones
together. A row is thus rewritten about as often as its table doubles, not at every merge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.hadoop import Kind
from klamm.pipelines.sinks.exchange import why_impossible
from klamm.pipelines.sinks.layout import BATCH_COLUMN, BatchFolder
from klamm.pipelines.sinks.tables import LocalTable, Table, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CompactionPolicy:
    """When a table's folders are merged, and how large they become."""

    least_folders: int = 50
    """A table with fewer folders is not compacted."""
    interval_s: float = 600.0
    """At most once in this time while pipelines run: each time, active readers have to read again."""
    target_bytes: int = 128 * 1024 * 1024
    """Folders of this size are not merged; merged files have about this size."""


LARGER_BY = 2.0
"""A folder is merged with newer ones if it is at most this many times as large as all of them together."""


class Compacted(NamedTuple):
    """What a compaction did; `reason` says why if it did nothing."""

    folders_before: int
    folders_after: int
    reason: str = ""


def choose_run(
    sizes: Sequence[tuple[BatchFolder, int]], policy: CompactionPolicy
) -> list[tuple[BatchFolder, int]]:
    """The neighbouring folders to merge next, of the newest run; empty if no run is long enough."""
    by_attempt: dict[int, list[tuple[BatchFolder, int]]] = {}
    for folder, size in sorted(sizes):
        by_attempt.setdefault(folder.attempt, []).append((folder, size))
    for _, folders in sorted(by_attempt.items(), reverse=True):
        run: list[tuple[BatchFolder, int]] = []
        total = 0
        for folder, size in reversed(folders):
            too_large = size >= policy.target_bytes or (run and size > LARGER_BY * total)
            if too_large and len(run) >= policy.least_folders:
                break
            if too_large:
                run, total = [], 0
            if size < policy.target_bytes:
                run.append((folder, size))
                total += size
        if len(run) >= max(2, policy.least_folders):
            return run[::-1]
    return []


def compact(spark: SparkSession, table: Table, log: BatchLog, policy: CompactionPolicy) -> Compacted:
    """Merge one run of folders, if there is one. This process may publish batches meanwhile."""
    folders = table.folders()
    if not isinstance(table, LocalTable):
        return _nothing(folders, _reason_for_kind(table))
    if len(folders) < policy.least_folders:
        return _nothing(folders, f"{len(folders)} folders are too few to merge")
    if reason := why_impossible(table.path.parent):
        return _nothing(folders, reason)
    run = choose_run([(folder, table.size_bytes(folder)) for folder in folders], policy)
    if not run:
        return _nothing(folders, "its folders are large enough")
    merged_folders = [folder for folder, _ in run]
    staged = table.new_staging("merged")
    try:
        files = math.ceil(sum(size for _, size in run) / policy.target_bytes)
        _merge(spark, table, merged_folders, staged, files)
        into = BatchFolder(run[0][0].attempt, run[0][0].first, run[-1][0].last)
        table.replace(merged_folders, staged, into)
    finally:
        table.discard(staged)
    log.merge(into)
    return Compacted(len(folders), len(folders) - len(run) + 1)


def _merge(
    spark: SparkSession, table: LocalTable, folders: Sequence[BatchFolder], staged: str, files: int
) -> None:
    paths = [table.path / folder.name for folder in folders]
    frame, partition_by = _read(spark, table, paths)
    writer = frame.coalesce(files).write
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(staged)
    before, after = sum(map(_rows, paths)), _rows(Path(staged))
    if before != after:
        raise TableError(
            f"merging {len(paths)} folders of {table.location} gave {after} rows instead of {before}",
            advice="The table stays as it was; read it with Spark to see which file is damaged",
        )


def _read(spark: SparkSession, table: LocalTable, paths: Sequence[Path]) -> tuple[DataFrame, list[str]]:
    """The rows of some folders, and their partition columns.

    Partition columns are read as strings: Spark would guess their types, and write other folder names back.
    """
    from pyspark.sql.types import StringType, StructType

    leaves = sorted({file.parent for path in paths for file in path.rglob("*.parquet")})
    depths = [leaf.relative_to(table.path).parts[1:] for leaf in leaves]
    partition_by = [part.partition("=")[0] for part in depths[0]]
    schema: Any = spark.read.option("mergeSchema", "true").parquet(*map(str, leaves)).schema
    with_folders = StructType([*schema.fields])
    for name in [BATCH_COLUMN, *partition_by]:
        with_folders = with_folders.add(name, StringType())
    reader = spark.read.schema(with_folders).option("basePath", str(table.path))
    return reader.parquet(*map(str, paths)).drop(BATCH_COLUMN), partition_by


def _rows(folder: Path) -> int:
    import pyarrow.parquet

    return sum(pyarrow.parquet.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))


def _nothing(folders: Sequence[BatchFolder], reason: str) -> Compacted:
    return Compacted(len(folders), len(folders), reason)


def _reason_for_kind(table: Table) -> str:
    what = (
        "an object store has no folders" if table.kind is Kind.OBJECTS else "its file system has no such call"
    )
    return f"a table at {table.location} cannot be exchanged for another in one step: {what}"
