"""Pipelines that write Iceberg tables: each row once, also after crashes and with the checkpoint lost."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.lint import check
from klamm.pipelines.runner import run
from klamm.pipelines.sinks.iceberg import open_iceberg
from klamm.testing.faults import MOMENTS, striking
from tests.pipelines.killed_run import killed
from tests.pipelines.running import Shop

CATALOG = """
[iceberg.lake]
type = "sql"
uri = "sqlite:///catalog.db"
warehouse = "warehouse"
"""
TABLE = """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 20})
def orders(rows):
    return rows

@pipeline(to=iceberg("lake.shop.orders", partition_by=["odd"]))
def table(orders):
    return orders.withColumn("odd", F.col("n") % 2 = 1)
""".replace("% 2 = 1", "% 2 == 1")


def make_shop(root: Path, bootstrap: str, text: str = TABLE) -> Shop:
    return Shop(root, bootstrap, text, more=CATALOG)


def newest(shop: Shop) -> Table:
    sink = load_definitions(shop.project).pipelines["table"].to
    found = open_iceberg(shop.project, sink).newest()
    assert found is not None
    return found


def read_by_duckdb(table: Table) -> list[int]:
    connection = table.scan().to_duckdb("rows")
    with connection:
        return [n for (n,) in connection.execute("SELECT n FROM rows").fetchall()]


def read_by_polars(table: Table) -> list[int]:
    return list(table.to_polars().select("n").collect()["n"])


def read_by_pandas(table: Table) -> list[int]:
    return list(table.scan().to_pandas()["n"])


def assert_each_once(shop: Shop, numbers: Iterable[int] | None = None) -> None:
    wanted = Counter(range(shop.sent) if numbers is None else numbers)
    for read in (read_by_pandas, read_by_polars, read_by_duckdb):
        assert Counter(read(newest(shop))) == wanted, read.__name__


def test_each_row_is_there_once_after_a_fault_and_with_the_state_lost(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, klamm_bootstrap)
    shop.send(40)

    def strike() -> None:
        raise OSError("the disk has gone away")

    with striking("after commit", strike, after=1):
        (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.error) == ("failed", "OSError: the disk has gone away")
    assert_each_once(shop)
    shop.send(20)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.rows_out) == ("finished", 20)
    assert_each_once(shop)

    shutil.rmtree(shop.project.state)
    shop.send(20, colour="red")
    shop.write(TABLE.replace("n BIGINT", "n BIGINT, colour STRING"))
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.generation, status.rows_out) == ("finished", 2, 20)
    assert_each_once(shop)
    table = newest(shop)
    colours = Counter(table.scan().to_arrow()["colour"].to_pylist())
    assert colours == {None: 60, "red": 20}
    last = table.current_snapshot()
    assert last is not None and last.summary is not None
    assert (last.summary["klamm.attempt"], last.summary["klamm.batch"]) == ("2", "0")

    shop.write(TABLE.replace('F.col("n") % 2 == 1', 'F.lit("yes")'))
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed"
    assert "the column odd is string now, and boolean in the table lake.shop.orders" in status.error
    (finding,) = [one for one in check(shop.project, deep=True, spark=spark) if one.severity == "error"]
    assert "the column odd is string now" in str(finding)


COUNTED = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 20})
def orders(rows):
    return rows

@pipeline(to=iceberg("lake.shop.counted"), mode="complete")
def table(orders):
    return orders.groupBy("n").count()
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_complete_result_replaces_the_one_before(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, klamm_bootstrap, COUNTED)
    shop.send(40)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.error) == ("finished", "")
    assert_each_once(shop)
    assert [each.summary.operation.value for each in newest(shop).snapshots()] == ["append", "overwrite"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_drivers_that_are_killed_at_each_moment_lose_and_double_nothing(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, klamm_bootstrap)
    for moment in [each for each in MOMENTS if "merge" not in each]:
        shop.send(40)
        assert killed(shop, moment, 1) == -signal.SIGKILL, moment
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "finished"
    assert_each_once(shop)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_replay_adds_the_rows_once_more(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = make_shop(tmp_path, klamm_bootstrap)
    shop.send(40)
    run(shop.project, once=True, spark=spark)
    planned = replay.plan(shop.project, "table", "earliest", spark=spark)
    assert any("in addition to those that it has" in warning for warning in planned.warnings)
    assert replay.carry_out(shop.project, planned, spark=spark) is None
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.generation, status.rows_out) == ("finished", 2, 40)
    assert_each_once(shop, [*range(40), *range(40)])
