"""Lets Spark analyse every pipeline without starting it, for mistakes that only Spark's analyser finds.

These are columns and types in functions and expectations, operations that an output mode does not support,
and rows that do not fit the existing table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from klamm.pipelines import frames
from klamm.pipelines.definitions import INFER, Definitions, ParquetSink, Pipeline
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.findings import Finding, finding_of
from klamm.pipelines.graph import sources_of
from klamm.pipelines.project import Project
from klamm.pipelines.runner import make_session
from klamm.pipelines.schemas.resolving import schema_file
from klamm.pipelines.sinks.kinds import check_columns
from klamm.pipelines.sinks.layout import BATCH_COLUMN
from klamm.pipelines.sinks.tables import open_table, table_location


def check_plans(project: Project, definitions: Definitions, spark: SparkSession | None) -> Iterator[Finding]:
    """The findings of all pipelines. A given session is used, and not stopped."""
    with _session(project, spark) as session:
        for pipeline in definitions.pipelines.values():
            yield from _check_plan(project, definitions, pipeline, session)


@contextmanager
def _session(project: Project, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    session = make_session(project)
    try:
        yield session
    finally:
        session.stop()


def _check_plan(
    project: Project, definitions: Definitions, pipeline: Pipeline, spark: SparkSession
) -> Iterator[Finding]:
    for source in sources_of(pipeline.name, definitions.nodes):
        file = schema_file(project, source)
        if source.schema == INFER and file is not None and not file.exists():
            return  # building would infer and write the schema; that it is missing was reported already
    try:
        frame = frames.build(pipeline, definitions, project, spark, streaming=True, makes_topics=False)
        check_columns(pipeline, frame.columns)
        _check_mode(frame, pipeline, spark)
    except PipelineError as error:
        yield finding_of(error, pipeline.place)
        return
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        what = f"{pipeline.name} cannot run in the mode {pipeline.mode!r}: {first}"
        yield Finding("error", pipeline.place, what, "Change the mode, or add withWatermark to the source")
        return
    if isinstance(pipeline.to, ParquetSink):
        yield from _check_table(project, pipeline, pipeline.to, frame.schema, spark)


def _check_mode(frame: DataFrame, pipeline: Pipeline, spark: SparkSession) -> None:
    """Run the check that Spark does itself when a query is started."""
    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[pipeline.mode]()
    plan = frame._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)


def _check_table(
    project: Project, pipeline: Pipeline, sink: ParquetSink, schema: StructType, spark: SparkSession
) -> Iterator[Finding]:
    location = table_location(project.tables, sink.table)
    if not open_table(spark, location).folders():
        return
    there = spark.read.option("mergeSchema", "true").parquet(location).schema
    known = {field.name.lower(): field for field in there if field.name != BATCH_COLUMN}
    for field in schema:
        old = known.pop(field.name.lower(), None)
        if old is not None and field.name not in sink.partition_by and old.dataType != field.dataType:
            yield Finding(
                "error",
                pipeline.place,
                f"{field.name} of {pipeline.name} is {field.dataType.simpleString().upper()}, but "
                f"{old.dataType.simpleString().upper()} in the table {location}",
                "Cast it, give it another name, or write to another table",
            )
    if known:
        names = ", ".join(field.name for field in known.values())
        what = f"{pipeline.name} no longer has columns that its table has: {names}"
        yield Finding("warning", pipeline.place, what, "They will be null in new rows")
