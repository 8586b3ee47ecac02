"""Writes the batches of a query to a table, Delta's or Iceberg's, each in one commit, exactly once.

Spark's tasks write files into the table's own store and tell the driver of them; the driver commits exactly
these files. After a crash Spark may run a batch again, with the same records: a batch that is in the table's
log is not written again.

How the modes commit: `append` adds the files, `complete` makes them the whole table, `upsert` keeps one
row for each value of the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import IcebergSink, Mode, TableSink
from klamm.pipelines.errors import PipelineError, Place
from klamm.pipelines.positions import Position, merged
from klamm.pipelines.tables.files import REPORT, Target, write_files
from klamm.pipelines.tables.table import Batch, Commit, Table, WrittenFile
from klamm.pipelines.tables.upserting import Choice, check_keys, only_one_each, upsert
from klamm.pipelines.tables.written import WrittenTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CommitT = TypeVar("CommitT", bound=Commit)

TASK_BYTES = 32 * 1024 * 1024
"""A task should write at least this much: files are then large enough, and small batches have one file."""

FIRST_RECORD_BYTES = 100
"""The size of a record in a file, as long as no batch has shown it."""


class RowsLost(PipelineError):
    """The files of a batch do not have the rows that its query returned."""


@dataclass(frozen=True)
class Writing:
    """What a pipeline writes to its table: who writes, in which attempt and epoch, from which offsets on."""

    owner: str
    attempt: int
    epoch: str
    start: Position
    mode: Mode
    choice: Choice
    place: Place


class TableWriter:
    """The function that `foreachBatch` calls for one pipeline.

    After each batch that it has committed it calls `on_rows` with the batch's number and its count of rows.
    """

    def __init__(
        self,
        sink: TableSink | IcebergSink,
        table: WrittenTable,
        writing: Writing,
        checkpoint: Checkpoint,
        on_rows: Callable[[int, int], None],
    ) -> None:
        self._sink = sink
        self._table = table
        self._writing = writing
        self._checkpoint = checkpoint
        self._on_rows = on_rows
        self._record_bytes: float = FIRST_RECORD_BYTES

    @property
    def group(self) -> str:
        """The consumer group of the pipeline, by which the table's log knows the pipeline."""
        return self._writing.owner

    def __call__(self, frame: DataFrame, number: int) -> None:
        last = self._table.last_batch(self._writing.owner, self._writing.attempt)
        if last is not None and number <= last:
            self._skip(frame, number, last)
            return
        rows = self.write(frame, self._batch(number), self._final)
        self._on_rows(number, rows)

    def write(
        self, frame: DataFrame, batch: CommitT, finish: Callable[[CommitT], CommitT] = lambda batch: batch
    ) -> int:
        """Write the rows of a batch, or of a redrive, and commit them. Returns how many there are. `finish`
        is called when the files are written and before they are committed."""
        renamed = self._table.adapt(
            frame.schema, self._sink.partition_by, self._writing.owner, self._writing.place
        )
        if renamed:
            frame = frame.withColumnsRenamed(dict(renamed))
        mode = self._writing.mode
        if mode == "upsert":
            frame = only_one_each(frame, self._choice(frame))
        target = self._table.target(
            frame.schema,
            self._partition_by(frame) if mode != "upsert" else (),
            f"staged-{batch.label}" if mode == "upsert" else batch.label,
        )
        files, rows = self._write_files(frame, target, batch.records)
        if batch.records:
            self._record_bytes = max(1.0, sum(file.bytes for file in files) / batch.records)
        self._commit(files, finish(batch), target, self._partition_by(frame), self._choice(frame))
        return rows

    def _commit(
        self,
        files: list[WrittenFile],
        batch: Commit,
        target: Target,
        partition_by: tuple[str, ...],
        choice: Choice,
    ) -> None:
        if self._writing.mode == "upsert":
            assert isinstance(self._table, Table), "check_mode was called"
            upsert(self._table, files, batch, target, partition_by, choice)
        elif self._writing.mode == "complete":
            self._table.replace_all(files, batch, target.schema, partition_by)
        else:
            self._table.append(files, batch, target.schema, partition_by)

    def _final(self, batch: Batch) -> Batch:
        """The batch as it is committed."""
        self._checkpoint.sync(batch.number)
        # Spark makes the folder of a query's state with its first batch.
        return replace(batch, keeps_state=self._checkpoint.keeps_state())

    def _write_files(self, frame: DataFrame, target: Target, records: int) -> tuple[list[WrittenFile], int]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        counts = [F.count(F.lit(1)).alias("rows")]
        if self._writing.mode == "upsert":
            keys = self._choice(frame).keys
            counts += [F.count_if(F.col(f"`{key}`").isNull()).alias(key) for key in keys]
        observation = Observation()
        frame = self._sized(frame.observe(observation, *counts), records)
        if self._sink.sort_by:
            frame = frame.sortWithinPartitions(*self._sink.sort_by)
        reports = frame.mapInArrow(partial(write_files, target=target), REPORT).collect()
        files = [WrittenFile.of(report.asDict()) for report in reports]
        counted: Mapping[str, int] = observation.get
        rows = sum(file.rows for file in files)
        if rows != counted["rows"]:
            raise RowsLost(
                f"a batch has {counted['rows']} rows, but its files have {rows}: nothing was added to "
                f"{self._table.location}",
                advice="Start the pipeline again, and it writes the batch again",
            )
        check_keys({key: counted[key] for key in counted if key != "rows"}, self._writing.place)
        return files, rows

    def _sized(self, frame: DataFrame, records: int) -> DataFrame:
        """The frame in fewer tasks if it is small, so that it makes fewer files."""
        tasks = max(1, math.ceil(records * self._record_bytes / TASK_BYTES))
        return frame.coalesce(tasks)

    def _choice(self, frame: DataFrame) -> Choice:
        """The columns that choose one of several rows with the same keys, as the frame spells them."""
        return self._writing.choice.spelled(frame.columns)

    def _partition_by(self, frame: DataFrame) -> tuple[str, ...]:
        """The partition columns as the frame spells them."""
        names = {name.lower(): name for name in frame.columns}
        return tuple(names[name.lower()] for name in self._sink.partition_by)

    def _skip(self, frame: DataFrame, number: int, last: int) -> None:
        """Handle a batch that was committed before a crash: only Spark's state still needs its rows."""
        if number < last:
            raise PipelineError(
                f"the table {self._table.location} is at batch {last}, but its checkpoint "
                f"{self._checkpoint.location} is at batch {number}: the checkpoint is an old copy",
                advice="Delete the checkpoint: the pipeline then goes on from the offsets in the table",
            )
        self._checkpoint.update_state(frame)

    def _batch(self, number: int) -> Batch:
        """The batch with its offsets: from the end of the last one to the end that the checkpoint has."""
        before = merged([self._writing.start, *(self._checkpoint.ends(number - 1) if number else [])], max)
        return Batch(
            self._writing.owner,
            self._writing.attempt,
            number,
            before,
            merged([before, *self._checkpoint.ends(number)], max),
            self._writing.epoch,
        )
