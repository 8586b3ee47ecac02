"""A pipeline with state gets its dead-letter records back through its retry topic, in their windows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import frames, replay
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.redrive_to_table import why_not
from klamm.pipelines.retry.redriving import redrive_through_topic
from klamm.pipelines.retry.topics import retry_topic
from klamm.pipelines.runner import run
from tests.pipelines.running import Shop

CHILD_S = 300.0
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


def forget_the_last_batch(shop: Shop) -> None:
    """What a process leaves that is killed after its batch was published, and before Spark noted that."""
    commits = shop.commits("hourly")
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in [commits / str(last), *commits.glob(f".{last}.*")]:
        file.unlink()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_record_is_in_its_window_once_whatever_happens(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, HOURLY)
    topic = retry_topic(shop.project, "hourly", "orders")
    send(shop, (1, "12:10", 1), (2, "12:20", -1), (3, "12:30", -10))
    # The checkpoint is one of before there were retry topics.
    with monkeypatch.context() as patch:
        original = frames._Builder._read_options
        patch.setattr(
            frames._Builder,
            "_read_options",
            lambda self, source: {
                name: value for name, value in original(self, source).items() if name != "retryTopic"
            },
        )
        run_once(shop, spark)
    node = load_definitions(shop.project).pipelines["hourly"]
    assert "keeps state" in why_not(shop.project, node)

    # One of the two is still bad, and gets a new dead-letter record. The batch runs again after a crash.
    shop.write(FORGIVING)
    assert redrive_through_topic(shop.project, "hourly").sent == {topic: 2}
    run_once(shop, spark)
    forget_the_last_batch(shop)
    shop.write(MORE_FORGIVING)
    send(shop, (4, "12:40", 1))
    run_once(shop, spark)
    with klamm.Admin(klamm_bootstrap) as admin:
        group = shop.project.group_of("hourly")
        assert admin.group_lag(group)[(topic, 0)] == 0, "the lag of the retry topic is known, too"
    done = redrive_through_topic(shop.project, "hourly")
    run_once(shop, spark)
    send(shop, (5, "15:00", 1), (6, "12:50", -60))
    run_once(shop, spark)
    assert done.total == 1, "that of the first run of the batch; the second run did not write another one"
    assert hours(shop) == {12: [1, 2, 3, 4]}

    # The window is closed: a redrive tells so before it sends, and the run counts the row.
    shop.write(HOURLY.replace("amount > 0", "amount > -100"))
    looked = redrive_through_topic(shop.project, "hourly", dry_run=True, session=lambda: spark)
    assert (looked.total, looked.late, looked.watermark_ms) == (1, 1, 1_769_868_000_000)
    assert redrive_through_topic(shop.project, "hourly").total == 1
    assert run_once(shop, spark).too_late == 1

    # A replay reads the original records, and skips what had come through the retry topic.
    replay.carry_out(shop.project, replay.plan(shop.project, "hourly", "earliest"), spark=spark)
    assert hours(shop) == {12: [1, 2, 3, 4, 6]}
    send(shop, (7, "18:00", 1))
    run_once(shop, spark)
    assert hours(shop) == {12: [1, 2, 3, 4, 6], 15: [5]}
    assert redrive_through_topic(shop.project, "hourly", dry_run=True).total == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("moment", ["before write", "after write", "after commit", "before checkpoint"])
def test_a_driver_that_is_killed_while_it_takes_retried_records_has_each_once(
    moment: str, spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, HOURLY, spark='"spark.sql.shuffle.partitions" = 1')
    send(shop, (1, "12:10", 1), (2, "12:20", -1), (3, "12:30", 1))
    run_once(shop, spark)
    shop.write(FORGIVING)
    assert redrive_through_topic(shop.project, "hourly").total == 1
    command = [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), "local[2]", moment, "0"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S)
    assert child.returncode == -signal.SIGKILL, child.stderr[-2000:]
    assert redrive_through_topic(shop.project, "hourly").total == 0
    send(shop, (4, "15:00", 1))
    run_once(shop, spark)
    assert hours(shop) == {12: [1, 2, 3]}
