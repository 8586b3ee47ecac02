"""How the batches of a table are named on disk. A core.

    <table>/batch=1-00000042/part-….parquet              batch 42 of the pipeline's first attempt
    <table>/batch=1-00000000-00000041.3/part-….parquet   batches 0 to 41, merged; the table was rebuilt thrice
    <table>/batch=1-00000043/day=2026-01-31/part-….parquet

`key=value`, so that Spark, DuckDB, pandas and pyarrow take the folders for a column and read what is in them.
A rebuilt table has other names for all of its folders, those included whose content stayed: a reader that
listed the old table must find none of it, because readers pass over what has gone since they listed it, and
would take what is left for all there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

BATCH_COLUMN = "batch"
"""What readers call the column that they make of the folders' names."""

PREFIX = f"{BATCH_COLUMN}="
_FOLDER = re.compile(r"batch=(\d+)-(\d{8,})(?:-(\d{8,}))?(?:\.(\d+))?")


class BatchFolder(NamedTuple):
    """One folder of a table: the batches `first` to `last` of an attempt. In the order they were made."""

    attempt: int
    first: int
    last: int
    rebuilds: int = 0
    """How often the table had been rebuilt when the folder got its name."""

    @classmethod
    def of_batch(cls, attempt: int, batch: int) -> BatchFolder:
        return cls(attempt, batch, batch)

    @classmethod
    def parse(cls, name: str) -> BatchFolder | None:
        """The folder of this name; None when it is none of ours."""
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
    """The batches among the names in a table's folder, in order; others' names are left out."""
    return sorted(folder for folder in map(BatchFolder.parse, names) if folder is not None)


def rebuilt_names(kept: Iterable[BatchFolder], rebuilds: int) -> dict[BatchFolder, BatchFolder]:
    """What the folders that stay are called in the table that was rebuilt `rebuilds` times."""
    return {folder: folder._replace(rebuilds=rebuilds) for folder in kept}
