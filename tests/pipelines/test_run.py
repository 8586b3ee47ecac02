"""Whole projects, run in one session against a broker: tables, failures, replays, schemas that change."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import replay
from klamm.pipelines.batch_log import BatchLog
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.preview import preview
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.runner import run
from klamm.pipelines.sinks.compaction import CompactionPolicy, compact
from klamm.pipelines.sinks.tables import LocalTable
from klamm.pipelines.state import State
from klamm.pipelines.status import read_status
from tests.pipelines.running import Shop

TABLE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 50})
def orders(rows):
    return rows

@pipeline(to=parquet("orders"))
def table(orders):
    return orders
"""

WAIT_S = 120.0


def ended(statuses: Sequence[PipelineStatus]) -> dict[str, str]:
    return {status.pipeline: status.state for status in statuses}


def test_a_table_has_each_record_once_and_tells_where_it_came_from(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(120)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.error) == ("finished", "")
    assert (status.rows_in, status.rows_out, status.lag, status.batch) == (120, 120, 0, 2)
    assert read_status(shop.project) == [status]
    shop.assert_each_once("orders")
    frame = spark.read.parquet(str(shop.table("orders")))
    assert frame.columns == ["n", "_topic", "_partition", "_offset", "_timestamp", "batch"]
    assert frame.select("_partition", "_offset").distinct().count() == 120

    shop.send(30)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.rows_in, status.batch) == (30, 3)
    shop.assert_each_once("orders")
    with klamm.Admin(klamm_bootstrap) as admin:
        assert sum(admin.group_lag(f"{shop.name}.table").values()) == 0

    state = State(shop.project)
    entries = BatchLog(state.batches_file("table")).entries
    assert [entry.rows for entry in entries] == [50, 50, 20, 30]
    assert all(before.end == after.start for before, after in pairwise(entries))

    table = LocalTable(shop.table("orders"))
    done = compact(spark, table, BatchLog(state.batches_file("table")), CompactionPolicy(least_folders=2))
    assert (done.folders_before, done.folders_after) == (4, 1)
    shop.assert_each_once("orders")


@pytest.mark.long
def test_batches_are_never_taken_for_others_with_the_same_number(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    shutil.rmtree(shop.project.checkpoints)
    shop.send(60)
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "is at batch 0" in status.error
    shutil.rmtree(shop.project.state)
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "the project's state was deleted" in status.error
    shop.assert_each_once("orders", range(60))
    for place in ("orders", "orders/more"):
        shop.write(TABLE + f"\n@pipeline(to=parquet('{place}'))\ndef second(orders):\n    return orders\n")
        with pytest.raises(
            DefinitionError, match="table and second write to the same table, or to one inside"
        ):
            run(shop.project, once=True, spark=spark)
    shop.write(TABLE.replace('parquet("orders")', 'parquet("others")'))
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.rows_out == 120
    shop.write(TABLE)
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "has batches, but table has written to" in status.error


TWO = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@source(topic="{topic}", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=parquet("orders", partition_by=["odd"]))
def table(orders):
    return orders.withColumn("odd", F.col("n") % 2)

@pipeline(to=parquet("broken"))
def broken(orders):
    @F.udf(LongType())
    def divide(n):
        return 1 // (n - 7)
    return orders.withColumn("x", divide("n"))

@pipeline(to=parquet("misspelt"))
def misspelt(orders):
    return orders.select("nn")

@pipeline(to=delta("lake"))
def lake(orders):
    return orders

@pipeline(to=parquet("grouped"))
def grouped(orders):
    return orders.groupBy("n").count()
"""


def test_one_pipeline_fails_and_the_others_go_on_until_they_are_stopped(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TWO)
    shop.send(20)
    stop = threading.Event()
    seen: list[dict[str, PipelineStatus]] = []
    deadline = time.monotonic() + WAIT_S
    more_sent = False

    def on_status(statuses: Sequence[PipelineStatus]) -> None:
        nonlocal more_sent
        now = {status.pipeline: status for status in statuses}
        seen.append(now)
        if now["broken"].state == "failed" and now["table"].rows_out >= 20 and not more_sent:
            more_sent = True
            shop.send(20)  # the one that is left still reads
        if now["table"].rows_out >= 40 or time.monotonic() > deadline:
            stop.set()

    statuses = {
        each.pipeline: each for each in run(shop.project, on_status=on_status, stop=stop, spark=spark)
    }
    assert ended(list(statuses.values())) == {
        "table": "stopped",
        "broken": "failed",
        "misspelt": "failed",
        "lake": "failed",
        "grouped": "failed",
    }
    file = tmp_path / "pipelines/orders.py"
    assert statuses["broken"].error.startswith(f"{file}:18: ZeroDivisionError: ")
    assert "\n" not in statuses["broken"].error and "Traceback" in statuses["broken"].error_detail
    assert statuses["misspelt"].error.startswith(f"{file}:23: ") and "`nn`" in statuses["misspelt"].error
    assert "jar" in statuses["lake"].error and "[spark]" in statuses["lake"].error
    assert statuses["misspelt"].error.count(str(file)) == 1
    assert statuses["grouped"].error.startswith(f"{file}:29: ") and "append" in statuses["grouped"].error
    assert statuses["table"].rows_in == 40
    assert any(each["table"].rate > 0 for each in seen)
    shop.assert_each_once("orders")
    assert not spark.streams.active
    with pytest.raises(Exception, match="no pipeline called 'tabel'"):
        run(shop.project, names=["tabel"], spark=spark)


@pytest.mark.long
def test_a_point_in_time_is_replayed(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    between = datetime.now(UTC)
    while datetime.now(UTC).timestamp() - between.timestamp() < 0.002:  # records have times in milliseconds
        pass
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    shop.assert_each_once("orders")

    # The transform is corrected, and what was made since the mistake is made anew.
    shop.write(TABLE.replace("return orders\n", 'return orders.selectExpr("*", "n * 2 AS twice")\n', 2))
    planned = replay.plan(shop.project, "table", between)
    assert planned.warnings == () and len(planned.retired) == 2 and planned.retired_rows == 60
    replay.carry_out(shop.project, planned)
    shop.assert_each_once("orders", range(60))
    with pytest.raises(replay.ReplayRefused, match="was replayed after"):
        replay.carry_out(shop.project, planned)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.generation, status.rows_out) == (2, 60)
    shop.assert_each_once("orders")
    # A new column in later batches: whoever reads all files' schemas finds it.
    frame = spark.read.option("mergeSchema", "true").parquet(str(shop.table("orders")))
    assert frame.where("twice = n * 2").count() == 60 and frame.where("twice IS NULL").count() == 60

    # By offset: batches are made anew whole, so a little more than asked for.
    planned = replay.plan(shop.project, "table", {shop.topic: {"0": 10}})
    assert planned.start["orders"] == {shop.topic: {"0": 0, "1": 0}} and planned.retired_rows == 120
    with pytest.raises(replay.ReplayRefused, match="nothing to replay"):
        replay.plan(shop.project, "table", "latest")
    replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"))
    assert run(shop.project, once=True, spark=spark)[0].generation == 3
    shop.assert_each_once("orders")
    frame = spark.read.parquet(str(shop.table("orders")))
    assert frame.where("twice = n * 2").count() == 120


def test_the_last_records_are_shown(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(40)
    shown = preview(shop.project, "orders", 6, spark)
    assert shown.columns[0] == "n" and "_offset" in shown.columns
    assert sorted(row[0] for row in shown.rows) == [34, 35, 36, 37, 38, 39]
    assert not (tmp_path / "tables").exists() and not (tmp_path / ".klamm").exists()


DATABASE = """
@source(topic="{topic}", schema="n BIGINT, customer STRING")
def orders(rows):
    return rows

@pipeline(to=jdbc("jdbc:derby:{database};create=true", "ORDERS"))
def stored(orders):
    return orders.select("n", "customer")
"""


@pytest.mark.long
def test_a_database_has_each_row_once_also_when_a_batch_is_run_again(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    url = f"jdbc:derby:{tmp_path / 'database'}"
    shop = Shop(tmp_path, klamm_bootstrap, DATABASE.replace("{database}", str(tmp_path / "database")))

    def numbers() -> list[int]:
        return sorted(row.n for row in spark.read.jdbc(url, "ORDERS").collect())

    shop.send(30, customer="ann")
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.rows_out, status.error) == ("finished", 30, "")
    assert numbers() == list(range(30))
    # Spark forgets that the batch is done, as it would if it were killed before it noted that.
    (shop.commits("stored") / "0").unlink()
    for checksum in shop.commits("stored").glob(".0.*"):
        checksum.unlink()
    shop.send(30, customer="bob")
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.rows_out) == ("finished", 30)
    assert numbers() == list(range(60))
    names = {row.TABLENAME for row in spark.read.jdbc(url, "SYS.SYSTABLES").collect()}
    assert "KLAMM_BATCHES" in names and not any(name.startswith("KLAMM_SHOP") for name in names)
    # What reads other records is no batch that was moved, whatever its number.
    shutil.rmtree(shop.project.state)
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "is at batch 1" in status.error and "KLAMM" in status.error.upper()
    assert numbers() == list(range(60))
    assert not Path("derby.log").exists()


TOPICS = """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT, at TIMESTAMP")
@expect("n is small", "n < 1000", otherwise="dead_letter")
def orders(rows):
    return rows.withWatermark("at", "1 minute")

@pipeline(to=topic("{topic}.counts", key="kind"), mode="update")
def counts(orders):
    return orders.groupBy((F.col("n") % 2).cast("string").alias("kind")).count()
"""


def test_an_aggregate_goes_to_a_topic_and_bad_rows_to_the_dead_letters(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TOPICS)
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.create_topic(f"{shop.topic}.counts", 1)
    shop.send_raw([b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', b'{"n": 4000}', b"no json"])
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.rows_in, status.dead_letters) == ("finished", 5, 2)
    assert status.rules == {"orders: n is small": 1} and status.undecodable == 1
    with klamm.Consumer(klamm_bootstrap, topics=[f"{shop.topic}.counts"], start="earliest") as consumer:
        found: dict[bytes | None, object] = {}
        while len(found) < 2:
            for record in consumer.poll(timeout=10.0):
                assert record.value is not None
                found[record.key] = json.loads(record.value)
    assert found == {b"0": {"kind": "0", "count": 1}, b"1": {"kind": "1", "count": 2}}
    planned = replay.plan(shop.project, "counts", "2020-01-01T00:00:00Z")
    assert len(planned.warnings) == 2 and "keeps state" in planned.warnings[0]
