"""The sink: rows become records with all they have, in order; a task fails unless all are acknowledged."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import klamm
from klamm.client.errors import ClientError
from klamm.pipelines.schemas.ddl import parse_ddl
from pyspark_klamm import sink as sink_module
from pyspark_klamm.errors import OptionError
from pyspark_klamm.sink import TopicSink, gathered, make_sink, producer_for
from tests.client.topics import make_topic, unique
from tests.spark.topics import records_of

COLUMNS = (
    "key BINARY, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, topic STRING"
)


def write(rows: DataFrame, bootstrap: str, **options: str) -> None:
    rows.write.format("klamm").option("kafka.bootstrap.servers", bootstrap).options(**options).save()


def make(bootstrap: str, columns: str, **options: str) -> TopicSink:
    given = {"kafka.bootstrap.servers": bootstrap}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    return make_sink(given, parse_ddl(columns))


# ---- what is written


def test_a_row_is_written_with_all_it_has(spark: SparkSession, klamm_bootstrap: str) -> None:
    first, second = make_topic(klamm_bootstrap, partitions=3), make_topic(klamm_bootstrap, partitions=1)
    rows = [
        (b"k", "v", [("h", b"1"), ("h", None)], 2, first),
        (None, "no key", None, 1, first),
        (b"gone", None, [], None, second),
        (b"", "", [("", b"")], None, second),
    ]
    write(spark.createDataFrame(rows, COLUMNS), klamm_bootstrap)
    found = [
        (record.partition, record.key, record.value, list(record.headers))
        for record in records_of(klamm_bootstrap, first)
    ]
    assert found == [(1, None, b"no key", []), (2, b"k", b"v", [("h", b"1"), ("h", None)])]
    found_second = {(record.key, record.value) for record in records_of(klamm_bootstrap, second)}
    assert found_second == {(b"gone", None), (b"", b"")}


def test_keys_choose_the_partitions_that_every_client_chooses(
    spark: SparkSession, klamm_bootstrap: str
) -> None:
    by_spark, by_client = (make_topic(klamm_bootstrap, partitions=5) for _ in range(2))
    rows = spark.range(200).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    write(rows, klamm_bootstrap, topic=by_spark)
    with klamm.Producer(klamm_bootstrap) as producer:
        for number in range(200):
            producer.send(by_client, b"%d" % number, key=b"%d" % number)
    places = [
        {record.key: record.partition for record in records_of(klamm_bootstrap, topic)}
        for topic in (by_spark, by_client)
    ]
    assert places[0] == places[1] and len(places[0]) == 200


# ---- what is refused, before anything is written


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("key STRING", {"topic": "t"}, "required attribute 'value' not found: the rows have key"),
        ("value STRING", {}, "topic option required when no 'topic' attribute is present"),
        ("value STRING", {"topic": " "}, "the option topic is empty"),
        ("value INT", {"topic": "t"}, "value attribute type must be string or binary, not int"),
        ("key BIGINT, value STRING", {"topic": "t"}, "key attribute type must be string or binary"),
        ("value STRING, topic INT", {"topic": "t"}, "topic attribute type must be string"),
        (
            "value STRING, partition BIGINT",
            {"topic": "t"},
            "partition attribute type must be int, not bigint",
        ),
        (
            "value STRING, headers ARRAY<STRING>",
            {"topic": "t"},
            "headers attribute type must be array<struct",
        ),
        ("value STRING", {"topics": "t"}, "unknown option 'topics'; did you mean 'topic'"),
        ("value STRING", {"topic": "t", "kafka.batch.sise": "1"}, r"kafka\.\* are not valid"),
        (
            "value STRING",
            {"topic": "t", "kafka.value.serializer": "x"},
            "kafka.value.serializer is not supported",
        ),
        ("value STRING", {"topic": "t", "kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
    ],
)
def test_refused(columns: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_sink({"kafka.bootstrap.servers": "127.0.0.1:1"} | options, parse_ddl(columns))


def test_spark_shows_what_was_refused(spark: SparkSession, klamm_bootstrap: str) -> None:
    with pytest.raises(PySparkException, match="required attribute 'value' not found"):
        write(spark.range(1), klamm_bootstrap, topic="t")
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for mode, words in {"overwrite": "overwrite is not supported for topics", "ignore": "Ignore"}.items():
        with pytest.raises(PySparkException, match=words):
            rows.write.format("klamm").options(topic="t").mode(mode).option(
                "kafka.bootstrap.servers", klamm_bootstrap
            ).save()


def test_a_row_without_topic_fails_the_query(spark: SparkSession, klamm_bootstrap: str) -> None:
    rows = spark.createDataFrame([("v", None)], "value STRING, topic STRING")
    with pytest.raises(PySparkException, match="null topic present in the data"):
        write(rows, klamm_bootstrap)


# ---- one task, without a JVM


def batch(**columns: Any) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def test_rows_of_a_partition_keep_their_order_among_many_topics(klamm_bootstrap: str) -> None:
    topics = [make_topic(klamm_bootstrap, partitions=2) for _ in range(3)]
    writer = make(klamm_bootstrap, "topic STRING, key STRING, value STRING")
    numbers = range(9_000)
    pieces = [
        batch(
            topic=[topics[number * 7 % 3] for number in numbers[start : start + 1_000]],
            key=[str(number % 11) for number in numbers[start : start + 1_000]],
            value=[str(number) for number in numbers[start : start + 1_000]],
        )
        for start in range(0, len(numbers), 1_000)
    ]
    assert writer.write(iter(pieces)).rows == len(numbers)
    for index, topic in enumerate(topics):
        found = [
            (record.partition, int(record.value or b"")) for record in records_of(klamm_bootstrap, topic)
        ]
        assert found == sorted(found), "in the order in which they came"
        assert sorted(number for _, number in found) == [n for n in numbers if n * 7 % 3 == index]


def test_rows_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "GATHERED_BYTES", 250)
    pieces = [batch(value=[b"x" * 100]) for _ in range(7)]
    assert [table.num_rows for table in gathered(iter(pieces))] == [3, 3, 1]
    assert list(gathered(iter(()))) == []


def test_a_task_without_rows_connects_to_nobody() -> None:
    assert make("127.0.0.1:1", "value STRING", topic="t").write(iter(())).rows == 0


def test_producers_are_kept_until_a_task_fails(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    writer = make(klamm_bootstrap, "value STRING, partition INT", topic=topic)
    writer.write(iter([batch(value=["a"], partition=pyarrow.array([0], pyarrow.int32()))]))
    kept = producer_for(writer.settings)
    writer.write(iter([batch(value=["b"], partition=pyarrow.array([0], pyarrow.int32()))]))
    assert producer_for(writer.settings) is kept
    with pytest.raises(ClientError, match="partition"):
        writer.write(iter([batch(value=["c"], partition=pyarrow.array([7], pyarrow.int32()))]))
    assert producer_for(writer.settings) is not kept
    assert [record.value for record in records_of(klamm_bootstrap, topic)] == [b"a", b"b"]


def test_a_task_fails_when_nobody_acknowledges(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    writer = make(address, "value STRING", topic=unique("none"), kafka__max__block__ms="300")
    with pytest.raises(ClientError, match=address):
        writer.write(iter([batch(value=["x"])]))


def test_a_row_that_is_too_large_fails_the_task(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    writer = make(klamm_bootstrap, "value STRING", topic=topic, kafka__max__request__size="1000")
    with pytest.raises(ClientError, match="max_request_size"):
        writer.write(iter([batch(value=["small", "x" * 2_000])]))
