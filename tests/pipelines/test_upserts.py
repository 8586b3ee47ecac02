"""Tables with one row for each key, as pipelines write them: the present hour, and newest rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import replay
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.runner import run
from tests.pipelines.running import Shop

ACCESS = """
from pyspark.sql import functions as F

@source(topic="{topic}", format="nginx", log_format="[$time_local] $remote_addr $status $request_time")
def access(rows):
    return rows.withWatermark("time_local", "2 hours")
"""

HOURLY = """
@pipeline(to=to_table("hourly"), mode="upsert", keys=["hour", "status"])
def hourly(access):
    counted = access.groupBy(F.window("time_local", "1 hour"), "status").agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("hour"), "status", "n")
"""

ROWS = """
@pipeline(to=to_table("clients"), mode="upsert", keys="remote_addr")
def clients(access):
    return access

@pipeline(to=to_table("fastest"), mode="upsert", keys="remote_addr", order_by="request_time", keep="oldest")
def fastest(access):
    return access
"""


def send(shop: Shop, *lines: tuple[int, int, str, int, float]) -> None:
    """Lines as (minute of the record, hour, client, status, seconds)."""
    with klamm.Producer(shop.bootstrap) as producer:
        for number, (minute, hour, client, status, seconds) in enumerate(lines):
            line = f"[31/Jan/2026:{hour:02d}:30:00 +0000] {client} {status} {seconds:.3f}"
            at = int(datetime(2026, 1, 31, 12, minute, tzinfo=UTC).timestamp() * 1000)
            producer.send(shop.topic, line.encode(), partition=number % 2, timestamp=at).result()


def rows(shop: Shop, name: str, *columns: str) -> list[tuple[Any, ...]]:
    found = shop.delta(name).to_pyarrow_table().to_pylist()
    picked = [tuple(row[column] for column in columns) for row in found]
    return sorted((each[0].hour, *each[1:]) if isinstance(each[0], datetime) else each for each in picked)


def finished(statuses: list[PipelineStatus]) -> dict[str, PipelineStatus]:
    assert {(status.state, status.error) for status in statuses} == {("finished", "")}
    return {status.pipeline: status for status in statuses}


def forget_the_last_batch(shop: Shop, pipeline: str) -> None:
    """What a process leaves that is killed after its batch was committed, and before Spark noted that."""
    commits = shop.commits(pipeline)
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in [commits / str(last), *commits.glob(f".{last}.*")]:
        file.unlink()


@pytest.mark.usefixtures("one_partition")
def test_a_table_has_the_present_hour(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, ACCESS + HOURLY)
    send(shop, (1, 10, "a", 200, 0.1), (2, 10, "b", 200, 0.4), (3, 11, "a", 404, 0.3), (4, 11, "b", 200, 0.2))
    with klamm.Producer(klamm_bootstrap) as producer:
        producer.send(shop.topic, b"[31/Jan/2026:12:00:00 +0000] c OK 1").result()
    statuses = finished(run(shop.project, once=True, spark=spark))
    assert {status.undecodable for status in statuses.values()} == {1}
    assert rows(shop, "hourly", "hour", "status", "n") == [(10, 200, 2), (11, 200, 1), (11, 404, 1)]

    forget_the_last_batch(shop, "hourly")
    # Hours that are open go on, and nothing counts twice.
    send(shop, (0, 11, "a", 200, 0.2), (4, 11, "b", 200, 0.2), (5, 12, "b", 500, 0.1))
    finished(run(shop.project, once=True, spark=spark))
    assert rows(shop, "hourly", "hour", "status", "n") == [
        (10, 200, 2),
        (11, 200, 3),
        (11, 404, 1),
        (12, 500, 1),
    ]


@pytest.mark.long
@pytest.mark.usefixtures("one_partition")
def test_live_and_replayed_tables_agree(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, ACCESS + ROWS)
    for minute in (5, 3, 1):
        send(shop, *[(minute, 10, client, 200, minute / 10) for client in "abcd"])
        finished(run(shop.project, once=True, spark=spark))
        forget_the_last_batch(shop, "clients")
    live = {name: rows(shop, name, "remote_addr", "request_time") for name in ("clients", "fastest")}
    assert live["clients"] == [(client, 0.5) for client in "abcd"]
    assert live["fastest"] == [(client, 0.1) for client in "abcd"]
    for name in live:
        replay.carry_out(shop.project, replay.plan(shop.project, name, "earliest"), spark=spark)
        assert rows(shop, name, "remote_addr", "request_time") == live[name]
