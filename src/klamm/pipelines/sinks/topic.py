"""Writes rows to a topic: chooses the columns for key, value and headers.

Delivery is at least once: a batch that Spark runs again after a crash is sent again. Within a batch the
producer is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.pipelines.definitions import CARRIED, TopicSink
from klamm.pipelines.errors import DefinitionError, Place
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "klamm"
VALUE = "value"


def as_records(frame: DataFrame, sink: TopicSink, place: Place) -> DataFrame:
    """The columns key, value and headers. Without a column for the value, it is all columns as JSON."""
    from pyspark.sql import functions as F

    for argument, column in (("key", sink.key), ("value", sink.value), ("headers", sink.headers)):
        if column is not None and column not in frame.columns:
            raise DefinitionError(
                f"{argument}={column!r} of the topic {sink.topic} does not name a column",
                advice=f"The columns are {', '.join(frame.columns)}",
                place=place,
            )
    value = sink.value or (VALUE if VALUE in frame.columns else None)
    if value is not None:
        columns = [_text_or_bytes(frame, value).alias("value")]
    else:
        shown = [name for name in frame.columns if name not in CARRIED and name != sink.headers]
        columns = [F.to_json(F.struct(*[F.col(f"`{name}`") for name in shown])).alias("value")]
    if sink.key is not None:
        columns.append(_text_or_bytes(frame, sink.key).alias("key"))
    if sink.headers is not None:
        columns.append(F.col(f"`{sink.headers}`").alias("headers"))
    return frame.select(*columns)


def topic_writer(frame: DataFrame, sink: TopicSink, project: Project, place: Place) -> DataStreamWriter:
    writer = as_records(frame, sink, place).writeStream.format(FORMAT)
    return writer.options(**_options(sink, project))


def batch_writer(
    frame: DataFrame, sink: TopicSink, project: Project, place: Place
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that sends the rows of a batch, for queries that do more with each."""
    as_records(frame, sink, place)  # raises if the sink names other columns
    options = _options(sink, project)

    def write(batch: DataFrame, number: int) -> None:
        as_records(batch, sink, place).write.format(FORMAT).options(**options).mode("append").save()

    return write


def _options(sink: TopicSink, project: Project) -> dict[str, str]:
    settings = project.client_settings("producer").items()
    places = {"kafka.bootstrap.servers": project.bootstrap, "topic": sink.topic}
    return {**places, **{f"kafka.{name}": value for name, value in settings}}


def _text_or_bytes(frame: DataFrame, name: str) -> Column:
    """A column as the data source accepts it: strings and bytes unchanged, others as strings."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    column = F.col(f"`{name}`")
    kind = frame.schema[name].dataType
    if isinstance(kind, (StringType, BinaryType)):
        return column
    if isinstance(kind, (StructType, ArrayType, MapType)):
        return F.to_json(column)
    return column.cast("string")
