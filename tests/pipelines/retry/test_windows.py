"""A pipeline with state gets its dead-letter records back through its retry topic, in their windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import replay
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.redrive_to_table import redrive_to_table, why_not
from klamm.pipelines.retry.redriving import redrive_through_topic
from klamm.pipelines.retry.topics import retry_topic
from klamm.pipelines.runner import run
from tests.pipelines.running import Shop

HOURLY = """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT, amount DOUBLE, at TIMESTAMP")
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
def orders(rows):
    return rows.withWatermark("at", "1 hour")

@pipeline(to=to_table("hourly"))
def hourly(orders):
    counted = orders.groupBy(F.window("at", "1 hour")).agg(F.collect_list("n").alias("orders"))
    return counted.select(F.hour("window.start").alias("hour"), F.array_sort("orders").alias("orders"))
"""
FORGIVING = HOURLY.replace("amount > 0", "amount > -5")
MORE_FORGIVING = HOURLY.replace("amount > 0", "amount > -50")


@pytest.fixture(autouse=True)
def one_partition(spark: SparkSession) -> Iterator[None]:
    """State in one partition, as each more takes time."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def send(shop: Shop, *orders: tuple[int, str, float]) -> None:
    shop.send_raw(
        json.dumps({"n": n, "at": f"2026-01-31T{at}:00Z", "amount": amount}).encode()
        for n, at, amount in orders
    )


def run_once(shop: Shop, spark: SparkSession) -> PipelineStatus:
    (status,) = run(shop.project, once=True, spark=spark, upkeep=None)
    assert (status.state, status.error) == ("finished", "")
    return status


def hours(shop: Shop) -> dict[int, list[int]]:
    rows = shop.delta("hourly").to_pyarrow_table().to_pylist()
    assert len(rows) == len({row["hour"] for row in rows}), "a window is written once"
    return {row["hour"]: row["orders"] for row in rows}


def test_a_mended_record_reaches_its_window(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, HOURLY)
    send(shop, (1, "12:10", 1), (2, "12:20", -1), (3, "12:30", 1))
    run_once(shop, spark)
    assert hours(shop) == {}, "the window is open"
    shop.write(FORGIVING)
    assert redrive_through_topic(shop.project, "hourly").total == 1
    send(shop, (4, "15:00", 1))
    status = run_once(shop, spark)
    assert hours(shop) == {12: [1, 2, 3]}
    assert status.too_late == 0 and status.lag == 0
    assert redrive_through_topic(shop.project, "hourly", dry_run=True).total == 0
