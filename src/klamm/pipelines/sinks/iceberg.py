"""Iceberg tables, through the writer in Iceberg's own jar, which users provide.

It notes in the table's log which batch of which query it has written, so that a batch that runs again changes
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CLASS = "org.apache.iceberg.spark.source.IcebergSource"


class JarMissing(PipelineError):
    """A sink needs a jar that the session does not have."""


def iceberg_writer(frame: DataFrame) -> DataStreamWriter:
    _need_jar(frame.sparkSession)
    return frame.writeStream.format("iceberg")


def _need_jar(spark: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(_CLASS, True, False)
    except Py4JJavaError:
        raise JarMissing(
            f"the sink iceberg needs a jar that Spark does not have: {_CLASS} was not found",
            advice="Name the jar of Iceberg for this version of Spark in klamm.toml, under [spark]: "
            'spark.jars = "…" or spark.jars.packages = "…"',
        ) from None
