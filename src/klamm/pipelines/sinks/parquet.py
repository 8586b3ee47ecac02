"""Writes the batches of a query to a table as folders of Parquet files, each batch exactly once.

After a crash Spark may run a batch again, with the same records. A batch is therefore written beside the
table and published under its number by one rename (`tables.py`). A batch that is already published is not
written again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.pipelines.batch_log import BatchEntry, BatchLog
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import ParquetSink
from klamm.pipelines.hadoop import Kind, joined
from klamm.pipelines.positions import Position, merged, records_between
from klamm.pipelines.sinks.layout import BatchFolder
from klamm.pipelines.sinks.tables import Table, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_BATCH_RECORDS = 250_000
"""Batches up to this size become one file. Splitting them saves less time than small files cost."""

_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Tasks move their files straight to the staging folder, which nobody reads before all are done.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


class ParquetWriter:
    """The function that `foreachBatch` calls for one pipeline.

    After each batch that it has published it calls `on_rows` with the batch's number and its count of rows.
    """

    def __init__(
        self,
        sink: ParquetSink,
        table: Table,
        log: BatchLog,
        checkpoint: Checkpoint,
        attempt: int,
        start: Position,
        on_rows: Callable[[int, int], None],
    ) -> None:
        if sink.partition_by and table.kind is Kind.OBJECTS:
            raise TableError(
                f"the table {table.location} cannot be partitioned: object stores cannot rename folders: "
                "readers could see a part of a batch",
                advice="Remove partition_by, or use iceberg(…), which needs no renames",
            )
        self._sink = sink
        self._table = table
        self._log = log
        self._checkpoint = checkpoint
        self._attempt = attempt
        self._start = start
        self._on_rows = on_rows

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self._table.holds(self._attempt, batch) or self._log.holds(self._attempt, batch):
            self._skip(frame, batch)
            return
        start, end = self._range(batch)
        staged = self._table.new_staging(f"{batch:08d}")
        try:
            rows = self._write(frame, staged, records_between(start, end))
            if rows:
                self._checkpoint.sync(batch)
                self._table.publish(staged, BatchFolder.of_batch(self._attempt, batch))
        finally:
            self._table.discard(staged)
        self._note(batch, start, end, rows)
        self._on_rows(batch, rows)

    def _write(self, frame: DataFrame, staged: str, records: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        if self._table.kind is Kind.OBJECTS:
            # A single object appears as a whole; with several, readers could see some before others.
            counted = counted.repartition(1)
        elif records <= SMALL_BATCH_RECORDS:
            counted = counted.coalesce(1)
        writer = counted.write.options(**_WRITE_OPTIONS)
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.parquet(staged)
        return int(observation.get["rows"])

    def _skip(self, frame: DataFrame, batch: int) -> None:
        """Handle a batch that was published before a crash: note it if needed, and update Spark's state."""
        self._refuse_an_older_checkpoint(batch)
        if not self._log.holds(self._attempt, batch):
            self._note(batch, *self._range(batch), self._rows_of(batch, frame.sparkSession))
        if self._checkpoint.keeps_state():
            frame.write.format("noop").mode("overwrite").save()

    def _refuse_an_older_checkpoint(self, batch: int) -> None:
        """Raise if the batch is not the last published one with the same records: the checkpoint is
        another."""
        last = self._log.last(self._attempt)
        if last is None or batch > last.last:
            return
        end = merged([last.start, *self._checkpoint.ends(batch)], max)
        if batch < last.last or end != last.end:
            raise TableError(
                f"the table {self._table.location} is at batch {last.last}, but its checkpoint "
                f"{self._checkpoint.location} is at batch {batch}: it was deleted, or is an old copy",
                advice="Restore the checkpoint, or replay the pipeline from earliest",
            )

    def _rows_of(self, batch: int, spark: SparkSession) -> int:
        """The rows of a published batch that the log does not count yet, even if the batch was merged
        since."""
        folder = self._table.find(self._attempt, batch)
        assert folder is not None
        rows = spark.read.parquet(joined(self._table.location, folder.name)).count()
        return rows - self._log.rows_in(folder)

    def _range(self, batch: int) -> tuple[Position, Position]:
        """The offsets of a batch: from the end of the last batch to the end that the checkpoint has."""
        before = self._log.last(self._attempt)
        start = self._start if before is None else before.end
        return start, merged([start, *self._checkpoint.ends(batch)], max)

    def _note(self, batch: int, start: Position, end: Position, rows: int) -> None:
        self._log.add(
            BatchEntry(self._attempt, batch, batch, start, end, rows, published_ms=int(time.time() * 1000))
        )
