"""Lets Spark analyse every pipeline without starting it, for mistakes that only Spark's analyser finds.

These are columns and types in functions and expectations, operations that an output mode does not support,
and rows that do not fit the existing table.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from klamm.pipelines import frames
from klamm.pipelines.definitions import INFER, Definitions, IcebergSink, Pipeline, TableSink
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.findings import Finding, finding_of
from klamm.pipelines.graph import sources_of, table_sources_of
from klamm.pipelines.newest import quick_session
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.resolving import schema_file
from klamm.pipelines.sinks.kinds import check_columns
from klamm.pipelines.sinks.writing import (
    check_output_mode,
    check_table,
    open_table,
    output_mode,
    written_table,
)
from klamm.pipelines.spark_sessions import session_meanwhile
from klamm.pipelines.table_sources import missing_tables
from klamm.pipelines.tables.columns import missing_columns


def check_plans(project: Project, definitions: Definitions, spark: SparkSession | None) -> Iterator[Finding]:
    """The findings of all pipelines. A given session is used, and not stopped."""
    with session_meanwhile(project, quick_session, spark) as session:
        for pipeline in definitions.pipelines.values():
            yield from _check_plan(project, definitions, pipeline, session)


def _check_plan(
    project: Project, definitions: Definitions, pipeline: Pipeline, spark: SparkSession
) -> Iterator[Finding]:
    for source in sources_of(pipeline.name, definitions.nodes):
        file = schema_file(project, source)
        if source.schema == INFER and file is not None and not file.exists():
            return  # building would infer and write the schema; that it is missing was reported already
    if missing_tables(project, table_sources_of(pipeline.name, definitions.nodes)):
        return  # what its rows are is not known before the table is written
    try:
        frame = frames.build(pipeline, definitions, project, spark, streaming=True, makes_topics=False)
        check_columns(pipeline, frame.columns)
        check_output_mode(frame, output_mode(frame, pipeline))
    except PipelineError as error:
        yield finding_of(error, pipeline.place)
        return
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        what = f"{pipeline.name} cannot run in the mode {pipeline.mode!r}: {first}"
        yield Finding("error", pipeline.place, what, "Change the mode, or add withWatermark to the source")
        return
    if isinstance(pipeline.to, (TableSink, IcebergSink)):
        yield from _check_table(project, pipeline, pipeline.to, frame)


def _check_table(
    project: Project, pipeline: Pipeline, sink: TableSink | IcebergSink, frame: DataFrame
) -> Iterator[Finding]:
    try:
        check_table(frame, pipeline, sink, written_table(project, sink))
    except PipelineError as error:
        yield finding_of(error, pipeline.place)
        return
    if isinstance(sink, IcebergSink):
        return
    there = open_table(project, sink).newest()
    if there is not None and (names := missing_columns(frame.schema, there.schema())):
        what = f"{pipeline.name} no longer has columns that its table has: {', '.join(names)}"
        yield Finding("warning", pipeline.place, what, "They will be null in new rows")
