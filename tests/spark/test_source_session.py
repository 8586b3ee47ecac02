"""The source in a real Spark session: what only Spark can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import klamm
from tests.client.topics import make_topic, unique
from tests.waiting import wait_until

PATIENCE_S = 90


@pytest.fixture(scope="module")
def admin(klamm_bootstrap: str) -> Iterator[klamm.Admin]:
    with klamm.Admin(klamm_bootstrap) as admin:
        yield admin


def send(bootstrap: str, topic: str, *numbers: int) -> None:
    with klamm.Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"k", headers={"n": b"%d" % number})
        producer.flush()


def read(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()  # type: ignore[arg-type]


def stream(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()  # type: ignore[arg-type]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select(F.col("value").cast("string").cast("int")).collect())


def finished(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(PATIENCE_S), "the query goes on"
    return query


def test_a_topic_as_a_table(spark: SparkSession, klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap, partitions=2)
    send(klamm_bootstrap, topic, *range(100))
    frame = read(spark, klamm_bootstrap, subscribe=topic, includeHeaders=True, minPartitions=5)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert frame.rdd.getNumPartitions() >= 5
    assert numbers(frame) == list(range(100))
    row = frame.where("CAST(value AS STRING) = '7'").first()
    assert row is not None
    assert (row.key, row.topic, row.headers[0].key, row.headers[0].value) == (b"k", topic, "n", b"7")
    summary = frame.agg(F.min("timestamp"), F.max(F.size("headers")), F.count_distinct("offset")).first()
    assert summary is not None and summary[0].year > 2000 and summary[1] == 1


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, klamm_bootstrap: str) -> None:
    assert read(spark, klamm_bootstrap, subscribe=make_topic(klamm_bootstrap)).count() == 0


def test_errors_reach_the_user(spark: SparkSession, klamm_bootstrap: str) -> None:
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read(spark, klamm_bootstrap, subscribe="x", startingOffset="earliest").count()
    missing = unique("missing")
    with pytest.raises(PySparkException, match=f"{missing} does not exist"):
        read(spark, klamm_bootstrap, subscribe=missing).count()


@pytest.mark.long
def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, klamm_bootstrap: str, admin: klamm.Admin, tmp_path: Path
) -> None:
    """Each run reads what came since the last, in steps; a batch that was begun is read again as it was."""
    topic = make_topic(klamm_bootstrap, partitions=2)
    seen: list[tuple[int, list[int]]] = []
    fails_at = {1}

    def note(rows: DataFrame, batch_id: int) -> None:
        found = numbers(rows)
        if batch_id in fails_at:
            raise ValueError(f"no batch {batch_id}: {found}")
        seen.append((batch_id, found))

    def run() -> StreamingQuery:
        frame = stream(
            spark, klamm_bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10
        )
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "check"))
        return writer.trigger(availableNow=True).start()

    send(klamm_bootstrap, topic, *range(20))
    with pytest.raises(PySparkException, match="no batch 1"):
        run().awaitTermination(PATIENCE_S)
    fails_at.clear()
    send(klamm_bootstrap, topic, *range(20, 25))
    query = finished(run())
    assert [batch_id for batch_id, _ in seen] == [0, 1, 2]
    assert [len(found) for _, found in seen] == [10, 10, 5]
    assert sorted(number for _, found in seen for number in found) == list(range(25))
    group = f"spark-klamm-{query.id}"
    assert sum(each.offset for each in admin.list_group_offsets(group).values()) == 25
    assert admin.group_lag(group) == {(topic, 0): 0, (topic, 1): 0}, "the last batch is committed, too"


def test_a_query_that_runs(spark: SparkSession, klamm_bootstrap: str, admin: klamm.Admin) -> None:
    """New records and new partitions arrive; Spark's progress and the group say how far it is."""
    topic, group = make_topic(klamm_bootstrap), unique("group")
    frame = stream(spark, klamm_bootstrap, subscribe=topic, **{"kafka.group.id": group})
    query = frame.writeStream.format("memory").queryName("running").start()
    try:
        query.processAllAvailable()
        send(klamm_bootstrap, topic, 1, 2, 3)
        query.processAllAvailable()
        assert numbers(spark.table("running")) == [1, 2, 3]
        admin.create_partitions(topic, 2)
        with klamm.Producer(klamm_bootstrap) as producer:
            producer.send(topic, b"4", partition=1).result()
        wait_until(lambda: numbers(spark.table("running")) == [1, 2, 3, 4], "the new partition is read")
        wait_until(lambda: admin.group_lag(group) == {(topic, 0): 0, (topic, 1): 0}, "all is committed")
        progress = query.lastProgress
        assert progress is not None
        assert progress.sources[0].endOffset == f'{{"{topic}": {{"0": 3, "1": 1}}}}'
        assert progress.sources[0].latestOffset == progress.sources[0].endOffset
    finally:
        query.stop()
