"""What the suite does with a connector: each function is one use of Spark, with plain values in and out.

They run in the process of the tests for our connector, and in another one for Spark's own, which needs a JVM
with other jars. So nothing of Spark's may come out of them, errors included: `Failure` is a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

STREAM_TIMEOUT_SECONDS = 90

SPARK_ERRORS = (PySparkException, Py4JError)

Options = Mapping[str, str]
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Failure:
    """An error of Spark's, with all it said, apart from where in Spark it came from."""

    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        return cls(str(error).partition("\n\tat ")[0])


def provider(spark: SparkSession, name: str) -> str:
    """The class that Spark takes for a format."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().conf()
    return str(
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, conf).getName()
    )


def schema(spark: SparkSession, name: str, options: Options) -> dict[str, Any]:
    return dict(spark.read.format(name).options(**options).load().schema.jsonValue())


def read(spark: SparkSession, name: str, options: Options, columns: list[str]) -> Rows | Failure:
    """Rows of a batch query, sorted."""
    try:
        rows = spark.read.format(name).options(**options).load().selectExpr(*columns).collect()
    except SPARK_ERRORS as error:
        return Failure.of(error)
    return sorted((_plain(tuple(row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return bytes(value) if isinstance(value, bytearray) else value


def partition_count(spark: SparkSession, name: str, options: Options) -> int:
    return spark.read.format(name).options(**options).load().rdd.getNumPartitions()


def write(
    spark: SparkSession, name: str, options: Options, rows: Rows, columns: str, mode: str | None = None
) -> Failure | None:
    try:
        writer = spark.createDataFrame(rows, columns).write.format(name).options(**options)
        (writer if mode is None else writer.mode(mode)).save()
    except SPARK_ERRORS as error:
        return Failure.of(error)
    return None


@dataclass(frozen=True)
class Streamed:
    """What a streaming query brought: the values of each batch, and the last line of its log of offsets."""

    batches: list[list[str]]
    offsets: str


def stream(spark: SparkSession, name: str, options: Options, checkpoint: str) -> Streamed | Failure:
    """Run a streaming query until it has caught up."""
    batches: list[list[str]] = []

    def keep(rows: DataFrame, _: int) -> None:
        batches.append(sorted(row[0] for row in rows.selectExpr("CAST(value AS STRING)").collect()))

    try:
        rows = spark.readStream.format(name).options(**options).load()
        query = (
            rows.writeStream.foreachBatch(keep)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(STREAM_TIMEOUT_SECONDS):
            query.stop()
            return Failure("the query did not end")
    except SPARK_ERRORS as error:
        return Failure.of(error)
    logs = [path for path in (Path(checkpoint) / "offsets").iterdir() if path.name.isdigit()]
    last = max(logs, key=lambda path: int(path.name), default=None)
    return Streamed(batches, "" if last is None else last.read_text().splitlines()[-1])


def stream_counts(spark: SparkSession, name: str, options: Options, folder: str, mode: str) -> Failure | None:
    """Count words in two files, one after the other, and write the counts to a topic as they change."""
    source = Path(folder) / "words"
    source.mkdir()
    try:
        for number, words in enumerate([["a", "a"], ["a", "b"]]):
            (source / f"{number}.json").write_text("\n".join(json.dumps({"word": word}) for word in words))
            rows = spark.readStream.schema("word STRING").json(str(source))
            if mode == "append":
                rows = rows.selectExpr("word AS key", "word AS value")
            else:
                rows = (
                    rows.groupBy("word").count().selectExpr("word AS key", "CAST(count AS STRING) AS value")
                )
            query = (
                rows.writeStream.format(name)
                .options(**options)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .outputMode(mode)  # type: ignore[arg-type]
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(STREAM_TIMEOUT_SECONDS):
                query.stop()
                return Failure("the query did not end")
    except SPARK_ERRORS as error:
        return Failure.of(error)
    return None
