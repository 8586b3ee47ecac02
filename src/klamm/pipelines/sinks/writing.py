"""Starts the query that writes a pipeline's DataFrame, for all kinds of sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.pipelines.checkpoints import Checkpoint
from klamm.pipelines.definitions import (
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    TableSink,
    TopicSink,
)
from klamm.pipelines.locations import table_location
from klamm.pipelines.positions import merged
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.folders import open_folders
from klamm.pipelines.sinks.iceberg import open_iceberg
from klamm.pipelines.sinks.jdbc import JdbcWriter
from klamm.pipelines.sinks.kinds import check_columns, check_mode
from klamm.pipelines.sinks.parquet import ParquetWriter
from klamm.pipelines.sinks.table import TableWriter, Writing
from klamm.pipelines.sinks.topic import batch_writer, topic_writer
from klamm.pipelines.state import Attempt, State
from klamm.pipelines.table_sources import Snapshots
from klamm.pipelines.tables.table import Table
from klamm.pipelines.tables.upserting import Choice, check_order
from klamm.pipelines.tables.written import WrittenTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_ONCE = "0 seconds"
"""The trigger of a pipeline without one: the next batch starts when the last one is done."""


def open_table(project: Project, sink: TableSink) -> Table:
    """The table of a sink, which need not exist yet."""
    return Table(table_location(project.tables, sink.table), project.storage)


def written_table(project: Project, sink: TableSink | IcebergSink) -> WrittenTable:
    """The table of a sink, of Delta's or of Iceberg's, which need not exist yet."""
    return open_table(project, sink) if isinstance(sink, TableSink) else open_iceberg(project, sink)


def start_query(
    frame: DataFrame,
    pipeline: Pipeline,
    project: Project,
    state: State,
    attempt: Attempt,
    *,
    once: bool,
    on_rows: Callable[[int, int], None],
    into: Table | None = None,
) -> StreamingQuery:
    """Start the query that writes `frame` to the pipeline's sink, from its checkpoint on. A replay has it
    write `into` another table than the pipeline's own."""
    check_mode(pipeline)
    check_columns(pipeline, frame.columns)
    sink = pipeline.to
    checkpoint = Checkpoint(frame.sparkSession, state.checkpoint(pipeline.name, attempt))
    snapshots = Snapshots(frame)
    match sink:
        case TableSink() | IcebergSink():
            table = into or written_table(project, sink)
            check_table(frame, pipeline, sink, table)
            writing = Writing(
                project.group_of(pipeline.name),
                attempt.number,
                attempt.epoch,
                merged(attempt.start.values(), min),
                pipeline.mode,
                Choice(pipeline.keys, pipeline.order_by, pipeline.keep),
                pipeline.place,
            )
            write_table = TableWriter(sink, table, writing, checkpoint, on_rows)
            writer = frame.writeStream.foreachBatch(snapshots.renewed_by(write_table))
        case ParquetSink():
            folders = open_folders(frame.sparkSession, table_location(project.tables, sink.table))
            folders.clean_up()
            write = ParquetWriter(sink, folders, checkpoint, attempt.number, on_rows)
            writer = frame.writeStream.foreachBatch(snapshots.renewed_by(write))
        case JdbcSink():
            write_rows = _jdbc_writer(sink, pipeline, project, attempt, checkpoint, on_rows)
            writer = frame.writeStream.foreachBatch(snapshots.renewed_by(write_rows))
        case TopicSink() if snapshots:
            write_topic = batch_writer(frame, sink, project, pipeline.place)
            writer = frame.writeStream.foreachBatch(snapshots.renewed_by(write_topic))
        case TopicSink():
            writer = topic_writer(frame, sink, project, pipeline.place)
    name = f"{pipeline.name}, replay {attempt.replay}" if attempt.replay else pipeline.name
    return _started(writer.queryName(name), frame, pipeline, checkpoint.location, once)


def check_table(
    frame: DataFrame, pipeline: Pipeline, sink: TableSink | IcebergSink, table: WrittenTable
) -> None:
    """Raise if the rows cannot be written to the table: by their names, their types, or its partition
    columns."""
    check_order(frame.schema, pipeline.order_by, pipeline.name, pipeline.place)
    table.check(frame.schema, sink.partition_by, pipeline.name, pipeline.place)


def is_applied(
    pipeline: Pipeline,
    project: Project,
    attempt: Attempt,
    checkpoint: Checkpoint,
    batch: int,
    spark: SparkSession,
) -> bool:
    """True if a batch is in its sink although Spark does not count it as done. False for sinks that cannot
    tell: they get its rows again."""
    sink = pipeline.to
    last: int | None = None
    match sink:
        case TableSink() | IcebergSink():
            last = written_table(project, sink).last_batch(project.group_of(pipeline.name), attempt.number)
        case ParquetSink():
            folders = open_folders(spark, table_location(project.tables, sink.table))
            last = folders.last_batch(attempt.number)
        case JdbcSink():
            writer = _jdbc_writer(sink, pipeline, project, attempt, checkpoint, lambda batch, rows: None)
            return writer.has(spark, batch)
    return last is not None and batch <= last


def output_mode(frame: DataFrame, pipeline: Pipeline) -> str:
    """Spark's output mode. An upsert gets the rows that have changed; where Spark does not know them, as for
    joins of streams, it gets the final ones."""
    if pipeline.mode != "upsert":
        return pipeline.mode
    from py4j.protocol import Py4JJavaError

    try:
        check_output_mode(frame, "update")
    except Py4JJavaError:
        return "append"
    return "update"


def check_output_mode(frame: DataFrame, mode: str) -> None:
    """Run the check that Spark does itself when a query is started. Raises Py4JJavaError, or what PySpark
    makes of it."""
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    plan = frame._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, wanted)


def _jdbc_writer(
    sink: JdbcSink,
    pipeline: Pipeline,
    project: Project,
    attempt: Attempt,
    checkpoint: Checkpoint,
    on_rows: Callable[[int, int], None],
) -> JdbcWriter:
    return JdbcWriter(sink, project.name, pipeline.name, attempt.number, pipeline.mode, checkpoint, on_rows)


def _started(
    writer: DataStreamWriter, frame: DataFrame, pipeline: Pipeline, checkpoint: str, once: bool
) -> StreamingQuery:
    writer = writer.outputMode(output_mode(frame, pipeline))
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.trigger or AT_ONCE)
    return writer.start()
