"""The names of sinks, and which modes and columns each supports. Without Spark, as lint uses it too."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.pipelines.definitions import (
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    Sink,
    TableSink,
    TopicSink,
)
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.locations import table_location
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.layout import BATCH_COLUMN


def sink_text(sink: Sink) -> str:
    """A sink in a few words, for users."""
    match sink:
        case TableSink():
            return f"table {sink.table}"
        case ParquetSink():
            return f"parquet {sink.table}"
        case IcebergSink():
            return f"iceberg {sink.table}"
        case JdbcSink():
            return f"jdbc {sink.table}"
        case TopicSink():
            return f"topic {sink.topic}"


def place_of_table(project: Project, sink: TableSink | ParquetSink | IcebergSink) -> str:
    """Where a sink writes, to find two that write to one place."""
    return (
        f"iceberg:{sink.table}"
        if isinstance(sink, IcebergSink)
        else table_location(project.tables, sink.table)
    )


def counts_itself(sink: Sink) -> bool:
    """True if a sink itself counts the rows that it writes."""
    return isinstance(sink, (TableSink, IcebergSink, ParquetSink, JdbcSink))


def check_mode(pipeline: Pipeline) -> None:
    """Raise if the sink does not support the pipeline's mode."""
    allowed = {
        TableSink: ("append", "complete", "upsert"),
        ParquetSink: ("append",),
        IcebergSink: ("append", "complete"),
        JdbcSink: ("append", "complete"),
    }.get(type(pipeline.to), ("append", "update", "complete"))
    if pipeline.mode not in allowed:
        raise DefinitionError(
            f"{sink_text(pipeline.to)} does not support the mode {pipeline.mode!r}",
            advice=_advice(pipeline, allowed),
            place=pipeline.place,
        )


def _advice(pipeline: Pipeline, allowed: Sequence[str]) -> str:
    if isinstance(pipeline.to, TableSink):
        return (
            'Write mode="upsert", keys=[…] to replace rows that change, or mode="complete" for small results'
        )
    return (
        f"Use {' or '.join(repr(mode) for mode in allowed)}, or a table or a topic; in the mode 'append' a "
        "window with a watermark is written once, when it is final"
    )


def check_columns(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Raise on columns that readers of the folders would not see, and on columns that are missing."""
    there = {name.lower() for name in columns}
    sorted_by = pipeline.to.sort_by if isinstance(pipeline.to, (TableSink, IcebergSink)) else ()
    given = (("keys", pipeline.keys), ("order_by", pipeline.order_by), ("sort_by", sorted_by))
    for what, names in given:
        if missing := [name for name in names if name.lower() not in there]:
            raise DefinitionError(
                f"{what} of {pipeline.name} names {', '.join(missing)}, which it does not have",
                advice=f"The columns are {', '.join(columns)}",
                place=pipeline.place,
            )
    if not isinstance(pipeline.to, ParquetSink):
        return
    if BATCH_COLUMN in there:
        raise DefinitionError(
            f"{pipeline.name} has a column {BATCH_COLUMN}, which is the name of the batch folders",
            advice="Give the column another name",
            place=pipeline.place,
        )
    missing = [name for name in pipeline.to.partition_by if name.lower() not in there]
    if missing:
        raise DefinitionError(
            f"partition_by of {pipeline.name} names {', '.join(missing)}, which it does not have",
            advice=f"The columns are {', '.join(columns)}",
            place=pipeline.place,
        )
    hidden = [name for name in pipeline.to.partition_by if name.startswith(("_", "."))]
    if hidden:
        raise DefinitionError(
            f"partition_by of {pipeline.name} names {', '.join(hidden)}: readers ignore folders whose "
            "names begin with _ or a dot, and all rows in them",
            advice='Give it another name: .withColumnRenamed("_partition", "partition")',
            place=pipeline.place,
        )
