"""What is common to Delta's tables and Iceberg's, for those who write batches and who ask what a pipeline has
written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from klamm.pipelines.errors import Place
from klamm.pipelines.positions import Position
from klamm.pipelines.tables.files import Target
from klamm.pipelines.tables.table import Commit, Reached, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class WrittenTable(Protocol):
    """A table that knows which batches of a pipeline it has. It need not exist yet."""

    location: str

    def is_there(self) -> bool:
        """True if the table exists."""

    def is_created_by(self, owner: str) -> bool:
        """True if the table is a pipeline's although it has no batch of it."""

    def has_other_files(self) -> bool:
        """True if there is no table, but something else at its location."""

    # ---- what a pipeline has written

    def reached(self, owner: str) -> Reached | None:
        """How far a pipeline has come; None if it has not committed anything."""

    def last_batch(self, owner: str, attempt: int) -> int | None:
        """The last batch of an attempt; None if it has none."""

    def epochs(self, owner: str) -> list[tuple[str, Position]]:
        """The pipeline's epochs that the table still knows, the oldest first: their names, and where each
        began."""

    def offsets(self, owner: str, partitions: Mapping[str, Sequence[str]]) -> Position:
        """The offsets of the next records to read, for those of the partitions that a batch has read."""

    # ---- writing, in this order

    def check(self, rows: StructType, partition_by: Sequence[str], who: str, place: Place) -> None:
        """Raise TableRefused if the rows of a pipeline (`who`) cannot be written to the table."""

    def adapt(
        self, rows: StructType, partition_by: Sequence[str], owner: str, place: Place
    ) -> Mapping[str, str]:
        """Let the table have what it needs before rows are written. Returns the names to give to columns that
        the table spells otherwise. Raises TableRefused if the rows do not fit."""

    def target(self, rows: StructType, partition_by: Sequence[str], label: str) -> Target:
        """Where and how tasks write these rows."""

    def append(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Add the files of a batch in one commit."""

    def replace_all(
        self, files: Sequence[WrittenFile], batch: Commit, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Make the files of a batch the whole table, in one commit."""
