"""Starts the query that writes a pipeline's DataFrame, for all kinds of sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import (
    DeltaSink,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    TopicSink,
)
from klamm.pipelines.positions import Position, merged
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.jdbc import JdbcWriter
from klamm.pipelines.sinks.kinds import check_columns, check_mode
from klamm.pipelines.sinks.lakehouse import lakehouse_writer
from klamm.pipelines.sinks.parquet import ParquetWriter
from klamm.pipelines.sinks.tables import Table, open_table, table_location
from klamm.pipelines.sinks.topic import topic_writer
from klamm.pipelines.state import Attempt, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_ONCE = "0 seconds"
"""The trigger of a pipeline without one: the next batch starts when the last one is done."""


@dataclass
class Started:
    """A started query. For a Parquet table also its table and batch log, for compaction."""

    query: StreamingQuery
    table: Table | None = None
    log: BatchLog | None = None


def start_query(
    frame: DataFrame,
    pipeline: Pipeline,
    project: Project,
    state: State,
    attempt: Attempt,
    *,
    once: bool,
    on_rows: Callable[[int, int], None],
    again: Started | None = None,
) -> Started:
    """Start the query that writes `frame` to the pipeline's sink, from its checkpoint on.

    A query that is started `again` uses the same table and log objects, because the compactor uses them too,
    and two objects for one table would undo each other's changes.
    """
    check_mode(pipeline)
    check_columns(pipeline, frame.columns)
    sink = pipeline.to
    checkpoint = Checkpoint(frame.sparkSession, state.checkpoint(pipeline.name, attempt))
    table: Table | None = None
    log: BatchLog | None = None
    match sink:
        case ParquetSink():
            if again is not None and again.table is not None and again.log is not None:
                table, log = again.table, again.log
            else:
                table = open_table(frame.sparkSession, table_location(project.tables, sink.table))
                table.clean_up()
                log = BatchLog(state.batches_file(pipeline.name))
            start = _start(attempt)
            write = ParquetWriter(sink, table, log, checkpoint, attempt.number, start, on_rows)
            writer = frame.writeStream.foreachBatch(write)
        case JdbcSink():
            write_rows = _jdbc_writer(sink, pipeline, project, attempt, checkpoint, on_rows)
            writer = frame.writeStream.foreachBatch(write_rows)
        case TopicSink():
            writer = topic_writer(frame, sink, project, pipeline.place)
        case IcebergSink() | DeltaSink():
            writer = lakehouse_writer(frame, sink)
    return Started(_started(writer, pipeline, checkpoint.location, once), table, log)


def is_applied(
    pipeline: Pipeline,
    project: Project,
    state: State,
    attempt: Attempt,
    checkpoint: Checkpoint,
    batch: int,
    spark: SparkSession,
) -> bool:
    """True if a batch is in its sink although Spark does not count it as done. False for sinks that cannot
    tell: they get its rows again."""
    sink = pipeline.to
    match sink:
        case ParquetSink():
            table = open_table(spark, table_location(project.tables, sink.table))
            log = BatchLog(state.batches_file(pipeline.name))
            return table.holds(attempt.number, batch) or log.holds(attempt.number, batch)
        case JdbcSink():
            writer = _jdbc_writer(sink, pipeline, project, attempt, checkpoint, lambda batch, rows: None)
            return writer.has(spark, batch)
        case _:
            return False


def _jdbc_writer(
    sink: JdbcSink,
    pipeline: Pipeline,
    project: Project,
    attempt: Attempt,
    checkpoint: Checkpoint,
    on_rows: Callable[[int, int], None],
) -> JdbcWriter:
    return JdbcWriter(sink, project.name, pipeline.name, attempt.number, pipeline.mode, checkpoint, on_rows)


def _started(writer: DataStreamWriter, pipeline: Pipeline, checkpoint: str, once: bool) -> StreamingQuery:
    writer = (
        writer.queryName(pipeline.name).outputMode(pipeline.mode).option("checkpointLocation", checkpoint)
    )
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.trigger or AT_ONCE)
    match pipeline.to:
        case IcebergSink(table=table):
            return writer.toTable(table)
        case DeltaSink(path=path):
            return writer.start(path)
        case _:
            return writer.start()


def _start(attempt: Attempt) -> Position:
    return merged((position for position in attempt.start.values()), min)
