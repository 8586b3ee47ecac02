"""The names of sinks, and which modes and columns each supports. Without Spark, as lint uses it too."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.pipelines.definitions import (
    DeltaSink,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    Sink,
    TopicSink,
)
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.sinks.layout import BATCH_COLUMN


def sink_text(sink: Sink) -> str:
    """A sink in a few words, for users."""
    match sink:
        case ParquetSink():
            return f"parquet {sink.table}"
        case IcebergSink():
            return f"iceberg {sink.table}"
        case DeltaSink():
            return f"delta {sink.path}"
        case JdbcSink():
            return f"jdbc {sink.table}"
        case TopicSink():
            return f"topic {sink.topic}"


def counts_itself(sink: Sink) -> bool:
    """True if a sink itself counts the rows that it writes."""
    return isinstance(sink, (ParquetSink, JdbcSink))


def check_mode(pipeline: Pipeline) -> None:
    """Raise if the sink does not support the pipeline's mode."""
    allowed = {
        ParquetSink: ("append",),
        DeltaSink: ("append", "complete"),
        IcebergSink: ("append", "complete"),
        JdbcSink: ("append", "complete"),
    }.get(type(pipeline.to), ("append", "update", "complete"))
    if pipeline.mode not in allowed:
        raise DefinitionError(
            f"{sink_text(pipeline.to)} does not support the mode {pipeline.mode!r}, as it cannot change rows "
            "that it has",
            advice=f"Use {' or '.join(repr(mode) for mode in allowed)}, or a topic; in the mode 'append' a "
            "window with a watermark is written once, when it is final",
            place=pipeline.place,
        )


def check_columns(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Raise on columns that readers of the table would not see, and on missing partition columns."""
    if not isinstance(pipeline.to, (ParquetSink, DeltaSink)):
        return
    there = {name.lower() for name in columns}
    if isinstance(pipeline.to, ParquetSink) and BATCH_COLUMN in there:
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
    if hidden and isinstance(pipeline.to, ParquetSink):
        raise DefinitionError(
            f"partition_by of {pipeline.name} names {', '.join(hidden)}: readers ignore folders whose "
            "names begin with _ or a dot, and all rows in them",
            advice='Give it another name: .withColumnRenamed("_partition", "partition")',
            place=pipeline.place,
        )
