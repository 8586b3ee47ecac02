"""Writes the batches of a query as folders of Parquet, each exactly once.

Spark may run a batch again after a crash, with the same records. So a batch is written beside the table and
published under its number by one rename (`tables.py`); one that is published already is not written again.
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
"""Batches up to this size become one file. Splitting a smaller one saves less time than small files cost."""

_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Tasks move their files straight to the staging folder; nobody looks there before all are done.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


class ParquetWriter:
    """What `foreachBatch` calls for one pipeline.

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
                f"the table {table.location} cannot be partitioned: an object store has no folders, so that "
                "readers could see a part of a batch",
                advice="Leave partition_by out, or take iceberg(…), which does not need folders",
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
            self._pass_over(frame, batch)
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
            # One object appears whole; a second one would appear later.
            counted = counted.repartition(1)
        elif records <= SMALL_BATCH_RECORDS:
            counted = counted.coalesce(1)
        writer = counted.write.options(**_WRITE_OPTIONS)
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.parquet(staged)
        return int(observation.get["rows"])

    def _pass_over(self, frame: DataFrame, batch: int) -> None:
        """A batch that was published before a crash: only what Spark itself keeps of it is made again."""
        self._refuse_an_older_checkpoint(batch)
        if not self._log.holds(self._attempt, batch):
            self._note(batch, *self._range(batch), self._rows_of(batch, frame.sparkSession))
        if self._checkpoint.keeps_state():
            frame.write.format("noop").mode("overwrite").save()

    def _refuse_an_older_checkpoint(self, batch: int) -> None:
        """Spark runs its last batch again, with the same records. Anything else is another checkpoint."""
        last = self._log.last(self._attempt)
        if last is None or batch > last.last:
            return
        end = merged([last.start, *self._checkpoint.ends(batch)], max)
        if batch < last.last or end != last.end:
            raise TableError(
                f"the table {self._table.location} is at batch {last.last}, but its checkpoint "
                f"{self._checkpoint.location} is about to write batch {batch}: it was removed, or is old",
                advice="Put the checkpoint back, or replay the pipeline from earliest",
            )

    def _rows_of(self, batch: int, spark: SparkSession) -> int:
        """How many rows of a published batch the log does not know of, also when it was merged since."""
        folder = self._table.find(self._attempt, batch)
        assert folder is not None
        rows = spark.read.parquet(joined(self._table.location, folder.name)).count()
        return rows - self._log.rows_in(folder)

    def _range(self, batch: int) -> tuple[Position, Position]:
        """The records of a batch: after those of the one before, up to what its checkpoint says."""
        before = self._log.last(self._attempt)
        start = self._start if before is None else before.end
        return start, merged([start, *self._checkpoint.ends(batch)], max)

    def _note(self, batch: int, start: Position, end: Position, rows: int) -> None:
        self._log.add(
            BatchEntry(self._attempt, batch, batch, start, end, rows, published_ms=int(time.time() * 1000))
        )
