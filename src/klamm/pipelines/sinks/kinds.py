"""What the kinds of sinks are called, and what each can take. Known without Spark: lint asks, too."""

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
    """A sink in a few words, for people."""
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
    """Whether a sink tells how many rows it has written."""
    return isinstance(sink, (ParquetSink, JdbcSink))


def check_mode(pipeline: Pipeline) -> None:
    """Refuse a mode whose rows the sink cannot take."""
    allowed = {
        ParquetSink: ("append",),
        DeltaSink: ("append", "complete"),
        IcebergSink: ("append", "complete"),
        JdbcSink: ("append", "complete"),
    }.get(type(pipeline.to), ("append", "update", "complete"))
    if pipeline.mode not in allowed:
        raise DefinitionError(
            f"{sink_text(pipeline.to)} cannot take rows in the mode {pipeline.mode!r}, as it does not change "
            "rows that it has",
            advice=f"Take {' or '.join(repr(mode) for mode in allowed)}, or a topic; with a watermark "
            "windows come out once, when they are final, in the mode 'append'",
            place=pipeline.place,
        )


def check_columns(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Refuse columns that readers of the table would lose, and those to partition by that are not there."""
    if not isinstance(pipeline.to, (ParquetSink, DeltaSink)):
        return
    there = {name.lower() for name in columns}
    if isinstance(pipeline.to, ParquetSink) and BATCH_COLUMN in there:
        raise DefinitionError(
            f"{pipeline.name} has a column {BATCH_COLUMN}, which is what readers call the folder of a batch",
            advice="Give the column another name",
            place=pipeline.place,
        )
    missing = [name for name in pipeline.to.partition_by if name.lower() not in there]
    if missing:
        raise DefinitionError(
            f"partition_by of {pipeline.name} names {', '.join(missing)}, which is no column of it",
            advice=f"There are {', '.join(columns)}",
            place=pipeline.place,
        )
    hidden = [name for name in pipeline.to.partition_by if name.startswith(("_", "."))]
    if hidden and isinstance(pipeline.to, ParquetSink):
        raise DefinitionError(
            f"partition_by of {pipeline.name} names {', '.join(hidden)}: readers pass over folders whose "
            "names begin like that, with all rows in them",
            advice='Give it another name: .withColumnRenamed("_partition", "partition")',
            place=pipeline.place,
        )
