"""Merges the small folders of a table into larger ones, while others read it.

A run of neighbouring folders becomes one; then the table's folder is exchanged for one with the merged folder
in their place (`LocalTable.replace`). A reader finds the table as it was before or as it is after, with each
row once. One that had listed the old table and comes back for its files finds none of them, and fails: it has
to read again. So this is done seldom (`CompactionPolicy.interval_s`).

Which folders: `choose_run` takes the newest ones, and older ones as long as they are not much larger than all
newer ones together. So a row is rewritten about as often as its table's size doubles, not at every merge.
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
    """When a table's folders are merged, and into how large ones."""

    least_folders: int = 50
    """Fewer small folders than this are not worth the work."""
    interval_s: float = 600.0
    """At most this often while pipelines run: each time, readers that are at it have to begin again."""
    target_bytes: int = 128 * 1024 * 1024
    """Folders of this size, and files of this size in them, are large enough."""


LARGER_BY = 2.0
"""How many times as large as all newer folders together a folder may be to be merged with them."""


class Compacted(NamedTuple):
    """What a compaction did; `reason` says why it did nothing."""

    folders_before: int
    folders_after: int
    reason: str = ""


def choose_run(
    sizes: Sequence[tuple[BatchFolder, int]], policy: CompactionPolicy
) -> list[tuple[BatchFolder, int]]:
    """The neighbouring folders to merge next, the newest run first; nothing when there is none worth it."""
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
    """Merge once what is worth it. Publishing may go on meanwhile, in this process."""
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
    """The rows of some folders, and the columns that are folders in them.

    Those are read as text, as they are written: Spark would guess types of them, and write other names back.
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
