"""Writes the batches of a query as folders of Parquet files, each batch exactly once.

After a crash Spark may run a batch again, with the same records. A batch is therefore written beside the
folder and published under its number by one rename (`folders.py`). A batch that is already published is not
written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import ParquetSink
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.locations import Kind
from klamm.pipelines.sinks.folders import BatchFolders
from klamm.pipelines.sinks.layout import BatchFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Tasks move their files straight to the staging folder, which nobody reads before all are done.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


class ParquetRefused(PipelineError):
    """A batch cannot be written as a folder of Parquet files."""


class ParquetWriter:
    """The function that `foreachBatch` calls for one pipeline.

    After each batch that it has published it calls `on_rows` with the batch's number and its count of rows.
    """

    def __init__(
        self,
        sink: ParquetSink,
        folders: BatchFolders,
        checkpoint: Checkpoint,
        attempt: int,
        on_rows: Callable[[int, int], None],
    ) -> None:
        if sink.partition_by and folders.kind is Kind.OBJECTS:
            raise ParquetRefused(
                f"the folders at {folders.location} cannot be partitioned: object stores cannot rename "
                "folders: readers could see a part of a batch",
                advice="Remove partition_by, or use table(…), which needs no renames",
            )
        self._sink = sink
        self._folders = folders
        self._checkpoint = checkpoint
        self._attempt = attempt
        self._on_rows = on_rows

    def __call__(self, frame: DataFrame, batch: int) -> None:
        last = self._folders.last_batch(self._attempt)
        if last is not None and batch <= last:
            self._skip(frame, batch, last)
            return
        staged = self._folders.new_staging(f"{batch:08d}")
        try:
            rows = self._write(frame, staged)
            if rows:
                self._checkpoint.sync(batch)
                self._folders.publish(staged, BatchFolder.of_batch(self._attempt, batch))
        finally:
            self._folders.discard(staged)
        self._on_rows(batch, rows)

    def _write(self, frame: DataFrame, staged: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        if self._folders.kind is Kind.OBJECTS:
            # A single object appears as a whole; with several, readers could see some before others.
            counted = counted.repartition(1)
        writer = counted.write.options(**_WRITE_OPTIONS)
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.parquet(staged)
        return int(observation.get["rows"])

    def _skip(self, frame: DataFrame, batch: int, last: int) -> None:
        """Handle a batch that was published before a crash: only Spark's state still needs its rows."""
        if batch < last:
            raise ParquetRefused(
                f"{self._folders.location} is at batch {last}, but its checkpoint "
                f"{self._checkpoint.location} is at batch {batch}: it was deleted, or is an old copy",
                advice="Restore the checkpoint, or let the pipeline write to another folder",
            )
        self._checkpoint.update_state(frame)
