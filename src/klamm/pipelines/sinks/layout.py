"""The names of batch folders of a `parquet()` sink. A core.

    <folder>/batch=1-00000042/part-….parquet              batch 42 of the pipeline's first attempt
    <folder>/batch=1-00000043/day=2026-01-31/part-….parquet

The form `key=value` makes Spark, DuckDB, pandas and pyarrow read the folders as partitions. Version 0.1 of
Klamm merged folders; `batch=1-00000000-00000041.3` has the batches 0 to 41.
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
    """One folder: the batches `first` to `last` of an attempt. Sorts by age."""

    attempt: int
    first: int
    last: int
    rebuilds: int = 0
    """Of merged folders: how many times folders had been merged before."""

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


def parse_folders(names: Iterable[str]) -> list[BatchFolder]:
    """The batch folders among the names in a folder, in order."""
    return sorted(folder for folder in map(BatchFolder.parse, names) if folder is not None)
