"""Pipelines that read the tables of others: bronze, silver and gold in one project."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

import klamm
from klamm.pipelines import lint, replay
from klamm.pipelines.preview import preview
from klamm.pipelines.retrying import heals
from klamm.pipelines.runner import run
from klamm.pipelines.sinks import topic
from klamm.pipelines.tables.table import Table
from klamm.testing.faults import striking
from tests.pipelines.killed_run import UPKEEP
from tests.pipelines.projects import make_project
from tests.pipelines.running import Shop
from tests.pipelines.test_crashes import killed

PROJECT = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 20})
def orders(rows):
    return rows

@source(table="silver")
@expect("is not 7", "n <> 7", otherwise="dead_letter")
def even(rows):
    return rows

@source(table="names", snapshot=True)
def names(rows):
    return rows

@pipeline(to=to_table("gold"))
def gold(even, names):
    return even.join(names, "customer", "left")

@source(table="bronze", read={"maxFilesPerTrigger": 1})
def bronze_rows(rows):
    return rows

@pipeline(to=to_table("silver"))
def silver(bronze_rows):
    return bronze_rows.selectExpr("*", "n % 2 AS customer")

@pipeline(to=to_table("bronze"))
def bronze(orders):
    return orders
"""


def write_names(shop: Shop, name: str) -> None:
    names = pa.table({"customer": pa.array([0, 1], pa.int64()), "name": [name, name]})
    write_deltalake(str(shop.table("names")), names, mode="overwrite")


def rows_by_name(shop: Shop) -> dict[str, list[int]]:
    rows = shop.delta("gold").to_pyarrow_table(columns=["n", "name"]).to_pylist()
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row["n"])
    return {name: sorted(numbers) for name, numbers in found.items()}


@pytest.mark.timeout(400)
def test_bronze_silver_and_gold_have_each_row_once(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PROJECT)
    write_names(shop, "a")
    shop.send(40)
    statuses = run(shop.project, once=True, spark=spark, upkeep=UPKEEP)
    assert [(each.pipeline, each.state, each.error) for each in statuses] == [
        ("bronze", "finished", ""),
        ("silver", "finished", ""),
        ("gold", "finished", ""),
    ]
    assert [(each.rows_in, each.rows_out, each.lag, each.dead_letters) for each in statuses] == [
        (40, 40, 0, 0),
        (40, 40, 0, 0),
        (40, 39, 0, 1),
    ]
    shop.assert_each_once("silver")
    assert rows_by_name(shop) == {"a": [n for n in range(40) if n != 7]}

    # A batch that is committed and not noted as done is not written again; a later one has a newer snapshot.
    write_names(shop, "b")
    shop.send(20)

    def strike() -> None:
        raise OSError("the disk has gone away")

    with striking("after commit", strike, after=1):
        statuses = run(shop.project, once=True, spark=spark, upkeep=None)
    assert [each.state for each in statuses] == ["finished", "failed", "failed"]
    assert [each.error for each in statuses[1:]] == ["OSError: the disk has gone away"] * 2
    # And a lost checkpoint goes on from the version in the pipeline's own table.
    shutil.rmtree(shop.root / ".klamm/checkpoints/gold")
    shop.send(10)
    statuses = run(shop.project, once=True, spark=spark, upkeep=None)
    assert [(each.state, each.error) for each in statuses] == [("finished", "")] * 3
    shop.assert_each_once("silver")
    assert rows_by_name(shop) == {"a": [n for n in range(40) if n != 7], "b": list(range(40, 70))}

    # Rows that a replay replaces cannot be streamed: gold says so, and is replayed too.
    replay.carry_out(shop.project, replay.plan(shop.project, "silver", "earliest"), spark=spark)
    (status,) = run(shop.project, once=True, names=["gold"], spark=spark, upkeep=None)
    assert status.state == "failed"
    assert "(replay, attempt 2) removed or rewrote rows" in status.error
    assert not heals(status.error_detail)
    with pytest.raises(replay.ReplayRefused, match="reads the table silver, of which only all rows"):
        replay.plan(shop.project, "gold", 10)
    replay.carry_out(shop.project, replay.plan(shop.project, "gold", "earliest"), spark=spark)
    shop.assert_each_once("silver")
    assert rows_by_name(shop) == {"b": [n for n in range(70) if n != 7]}
    shown = preview(shop.project, "gold", 5, spark=spark)
    assert len(shown.rows) == 5 and "name" in shown.columns


JOINED = """
@source(table="silver", read={"maxFilesPerTrigger": 1})
def numbers(rows):
    return rows

@source(table="names", snapshot=True)
def names(rows):
    return rows

@pipeline(to=to_table("gold"))
def gold(numbers, names):
    return numbers.join(names, "customer", "left")

@pipeline(to=topic("{topic}"))
def told(numbers, names):
    return numbers.join(names, "customer", "left").select("name")
"""


@pytest.mark.timeout(400)
def test_each_batch_of_a_run_joins_the_newest_snapshot(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, JOINED)
    for number in range(3):
        write_deltalake(str(shop.table("silver")), pa.table({"n": [number], "customer": [0]}), mode="append")
    names = iter("abcd")

    def next_name() -> None:
        write_names(shop, next(names))

    next_name()
    with striking("after commit", next_name):
        (status,) = run(shop.project, once=True, names=["gold"], spark=spark, upkeep=None)
    assert (status.state, status.error, status.batch) == ("finished", "", 2)
    assert sorted(name for name, found in rows_by_name(shop).items() if len(found) == 1) == ["a", "b", "c"]

    # A topic as well.
    names = iter("defg")
    next_name()
    with pytest.MonkeyPatch.context() as patch:
        records_of = topic.as_records

        def as_records(batch: DataFrame, *arguments: Any) -> DataFrame:
            if not batch.isStreaming:
                next_name()
            return records_of(batch, *arguments)

        patch.setattr(topic, "as_records", as_records)
        (status,) = run(shop.project, once=True, names=["told"], spark=spark, upkeep=None)
    assert (status.state, status.error, status.rows_out) == ("finished", "", 3)
    with klamm.Consumer(klamm_bootstrap, topics=[shop.topic], start="earliest") as consumer:
        told: list[str] = []
        while len(told) < 3:
            told += [json.loads(record.value or b"")["name"] for record in consumer.poll(timeout=10.0)]
    assert sorted(told) == ["d", "e", "f"]


@pytest.mark.timeout(400)
def test_a_table_that_nobody_writes_is_told(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PROJECT)
    (status,) = run(shop.project, once=True, names=["silver"], spark=spark, upkeep=None)
    assert "there is no table bronze, and this run does not write it. Run bronze first" in status.error
    shop.write(PROJECT.replace('table="bronze"', 'table="brass"'))
    (status,) = run(shop.project, once=True, names=["silver"], spark=spark, upkeep=None)
    assert "there is no table brass, and no pipeline of the project writes it" in status.error


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("moment", "count"), [("before commit", 2), ("after commit", 2)])
def test_a_driver_that_is_killed_between_the_commits_of_two_tables(
    moment: str, count: int, spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, PROJECT)
    write_names(shop, "a")
    shop.send(40)
    # Two batches of bronze are committed; the moment is the one of the first batch of silver.
    assert killed(shop, moment, count) == -signal.SIGKILL
    shop.assert_each_once("bronze")
    assert Table(str(shop.table("silver"))).is_there() == moment.startswith("after")
    statuses = run(shop.project, once=True, spark=spark, upkeep=None)
    assert [(each.state, each.error) for each in statuses] == [("finished", "")] * 3
    shop.assert_each_once("silver")
    assert rows_by_name(shop) == {"a": [n for n in range(40) if n != 7]}


def test_lint_knows_tables(tmp_path: Path) -> None:
    text = """
    @source(table="b")
    def reads_b(rows): return rows

    @source(table="a")
    def reads_a(rows): return rows

    @source(table="b", read={"skipChangeCommits": True})
    def new_in_b(rows): return rows

    @source(table="elsewhere")
    def elsewhere(rows): return rows

    @pipeline(to=to_table("a"))
    def a(reads_b, elsewhere): return reads_b

    @pipeline(to=to_table("b"), mode="upsert", keys=["n"])
    def b(reads_a): return reads_a

    @pipeline(to=to_table("c"))
    def c(new_in_b): return new_in_b
    """
    project = make_project(tmp_path, text)
    found = [finding.what for finding in lint.check(project, records=False)]
    assert found == [
        "rows of the table b change (b has the mode 'upsert'), but reads_b reads it as a stream",
        "there is no table elsewhere, and no pipeline of the project writes it",
        "these pipelines read each other's tables in a circle: a → b → a",
    ]
