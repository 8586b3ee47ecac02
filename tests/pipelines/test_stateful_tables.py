"""Pipelines that keep state write tables, and each of their rows once: also when a batch is run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.pipelines.runner import run
from tests.pipelines.projects import COUNT
from tests.pipelines.running import Shop

PIPELINES = (
    COUNT
    + """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT, customer BIGINT, at TIMESTAMP")
def orders(rows):
    return rows.withWatermark("at", "0 seconds")

@source(topic="{topic}", schema="n BIGINT, customer BIGINT, at TIMESTAMP")
def others(rows):
    return rows.select(F.col("n").alias("m"), F.col("at").alias("seen")).withWatermark("seen", "0 seconds")

@pipeline(to=to_table("windows"))
def windows(orders):
    counted = orders.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("n"))
    return counted.select(F.unix_seconds("window.start").alias("start"), "n")

@pipeline(to=to_table("singles"))
def singles(orders):
    return orders.dropDuplicates(["customer"]).select("customer")

@pipeline(to=to_table("pairs"))
def pairs(orders, others):
    return orders.join(others, F.expr("n = m AND seen BETWEEN at AND at + INTERVAL 1 SECOND")).select("n")

@pipeline(to=to_table("running"))
def running(orders):
    grouped = orders.groupBy("customer")
    return grouped.transformWithState(Count(), "customer BIGINT, n BIGINT", "Append", "None")
"""
)

NAMES = ("windows", "singles", "pairs", "running")


def send(shop: Shop, first: int, end: int) -> None:
    """An order for every second, of ten customers in turn."""
    at = [f"2026-01-31T12:{number // 60:02d}:{number % 60:02d}Z" for number in range(first, end)]
    shop.send_raw(
        json.dumps({"n": number, "customer": number % 10, "at": at[number - first]}).encode()
        for number in range(first, end)
    )


def forget_the_last_batches(shop: Shop) -> None:
    """What a process leaves that is killed after its batches were published, and before Spark noted that."""
    for name in NAMES:
        commits = shop.commits(name)
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for file in [commits / str(last), *commits.glob(f".{last}.*")]:
            file.unlink()


def rows(shop: Shop, name: str) -> list[tuple[int, ...]]:
    return sorted(tuple(row.values()) for row in shop.delta(name).to_pyarrow_table().to_pylist())


@pytest.mark.long
@pytest.mark.usefixtures("one_partition")
def test_each_row_is_there_once_when_batches_are_run_again(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PIPELINES)
    send(shop, 0, 60)
    for status in run(shop.project, once=True, spark=spark):
        assert (status.state, status.error) == ("finished", "")
    forget_the_last_batches(shop)
    send(shop, 60, 120)
    for status in run(shop.project, once=True, spark=spark):
        assert (status.state, status.error) == ("finished", "")
    windows = rows(shop, "windows")
    assert len(windows) == len({start for start, _ in windows}) == 11, "the last one is still open"
    assert {count for _, count in windows} == {10}
    assert rows(shop, "singles") == [(customer,) for customer in range(10)]
    assert rows(shop, "pairs") == [(number,) for number in range(120)]
    running = rows(shop, "running")
    assert len(set(running)) == len(running)
    assert {(customer, 12) for customer in range(10)} <= set(running), (
        "state was neither lost nor counted twice"
    )
