"""Iceberg and Delta tables, through the writers in their own jars, which users provide.

Both note in the table's log which batch of which query they have written, so that a batch that runs again
changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.pipelines.definitions import DeltaSink, IcebergSink
from klamm.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CLASSES = {
    "iceberg": "org.apache.iceberg.spark.source.IcebergSource",
    "delta": "org.apache.spark.sql.delta.sources.DeltaDataSource",
}


class JarMissing(PipelineError):
    """A sink needs a jar that the session does not have."""


def lakehouse_writer(frame: DataFrame, sink: IcebergSink | DeltaSink) -> DataStreamWriter:
    name = "iceberg" if isinstance(sink, IcebergSink) else "delta"
    _need(frame.sparkSession, name)
    writer = frame.writeStream.format(name)
    if isinstance(sink, DeltaSink) and sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer


def _need(spark: SparkSession, name: str) -> None:
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(_CLASSES[name], True, False)
    except Py4JJavaError:
        raise JarMissing(
            f"the sink {name} needs a jar that Spark does not have: {_CLASSES[name]} was not found",
            advice=f"Name the jar of {name} for this version of Spark in klamm.toml, under [spark]: "
            'spark.jars = "…" or spark.jars.packages = "…"',
        ) from None
