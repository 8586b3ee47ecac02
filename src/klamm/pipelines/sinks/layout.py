"""The names of batch folders in a table. A core.

    <table>/batch=1-00000042/part-….parquet              batch 42 of the pipeline's first attempt
    <table>/batch=1-00000000-00000041.3/part-….parquet   batches 0 to 41, merged in the table's third rebuild
    <table>/batch=1-00000043/day=2026-01-31/part-….parquet

The form `key=value` makes Spark, DuckDB, pandas and pyarrow read the folders as partitions. A rebuilt table
has new names for all of its folders, even those with the same content: a reader that has listed the old table
must find none of its folders, because readers skip missing ones silently, and would return only a part of the
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

BATCH_COLUMN = "batch"
"""The column that readers make of the folders' names."""

PREFIX = f"{BATCH_COLUMN}="
_FOLDER = re.compile(r"batch=(\d+)-(\d{8,})(?:-(\d{8,}))?(?:\.(\d+))?")


class BatchFolder(NamedTuple):
    """One folder of a table: the batches `first` to `last` of an attempt. Sorts by age."""

    attempt: int
    first: int
    last: int
    rebuilds: int = 0
    """How many times the table was rebuilt before the folder got its name."""

    @classmethod
    def of_batch(cls, attempt: int, batch: int) -> BatchFolder:
        return cls(attempt, batch, batch)

    @classmethod
    def parse(cls, name: str) -> BatchFolder | None:
        """The folder of this name; None if the name is not a batch folder's."""
        found = _FOLDER.fullmatch(name)
        if found is None:
            return None
        attempt, first, last, rebuilds = found.groups()
        return cls(int(attempt), int(first), int(last or first), int(rebuilds or 0))

    @property
    def name(self) -> str:
        last = f"-{self.last:08d}" if self.last != self.first else ""
        rebuilds = f".{self.rebuilds}" if self.rebuilds else ""
        return f"{PREFIX}{self.attempt}-{self.first:08d}{last}{rebuilds}"

    def holds(self, attempt: int, batch: int) -> bool:
        return self.attempt == attempt and self.first <= batch <= self.last


def parse_folders(names: Iterable[str]) -> list[BatchFolder]:
    """The batch folders among the names in a table's folder, in order."""
    return sorted(folder for folder in map(BatchFolder.parse, names) if folder is not None)


def rebuilt_names(kept: Iterable[BatchFolder], rebuilds: int) -> dict[BatchFolder, BatchFolder]:
    """The new names of folders that stay, in a table that was rebuilt `rebuilds` times."""
    return {folder: folder._replace(rebuilds=rebuilds) for folder in kept}
