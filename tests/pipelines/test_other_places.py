"""The same code elsewhere: on a cluster of two workers, and on a file system that is not this machine's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.hadoop import RemoteFiles
from klamm.pipelines.locations import Kind, kind_of
from klamm.pipelines.runner import run
from klamm.pipelines.sinks.folders import RemoteFolders, open_folders
from tests.pipelines.running import Shop
from tests.pipelines.standalone import StandaloneCluster

RUN_S = 600.0  # three JVMs and their workers start for it

TABLES = """
from pyspark.sql import functions as F

@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 40})
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    twice = F.udf(lambda n: n * 2, "BIGINT")
    return orders.withColumn("twice", twice("n"))
"""


@pytest.mark.timeout(850)
@pytest.mark.long
def test_a_cluster_of_two_workers_runs_the_same_project(klamm_bootstrap: str, tmp_path: Path) -> None:
    settings = 'spark.executor.memory = "512m"\nspark.executor.cores = 1\nspark.driver.host = "127.0.0.1"'
    folder = f"file://{tmp_path}/shop"
    places = f'{folder}/tables"\ncheckpoints = "{folder}/checkpoints'
    shop = Shop(tmp_path / "shop", klamm_bootstrap, TABLES, spark=settings, tables=places)
    shop.send(80)
    with StandaloneCluster(tmp_path) as cluster:
        child = subprocess.run(
            [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), cluster.master],
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        folders = [cluster.executor_folders(worker) for worker in range(2)]
    assert child.stdout.strip() == "table: finished 80", child.stderr[-3000:]
    shop.assert_each_once("orders")
    assert all(folders), "both workers have had an executor"


# ---- another file system


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A place that only Hadoop's FileSystem comes to: a mount table, with this machine's disk behind it."""
    (tmp_path / "mounted").mkdir()
    key = "fs.viewfs.mounttable.klammtest.link./data"
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set(key, f"file://{tmp_path / 'mounted'}")
    yield "viewfs://klammtest/data"
    configuration.unset(key)


@pytest.mark.long
def test_folders_and_checkpoints_lie_on_another_file_system(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path, elsewhere: str
) -> None:
    tables = f'{elsewhere}/tables"\ncheckpoints = "{elsewhere}/checkpoints'
    shop = Shop(tmp_path, klamm_bootstrap, TABLES.replace("to_table(", "parquet("), tables=tables)
    shop.send(80)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.error, status.rows_out) == ("finished", "", 80)
    location = f"{elsewhere}/tables/orders"
    folders = open_folders(spark, location)
    assert isinstance(folders, RemoteFolders) and kind_of(location) is Kind.FOLDERS
    assert [folder.name for folder in folders.published()] == ["batch=1-00000000", "batch=1-00000001"]
    assert not RemoteFiles(spark, location).names(f"{elsewhere}/tables/.klamm-staging/orders")
    planned = replay.plan(shop.project, "table", 25, spark=spark)
    assert "in addition to those that it has" in planned.warnings[0]
    replay.carry_out(shop.project, planned, spark=spark)
    run(shop.project, once=True, spark=spark)
    assert folders.last_batch(2) == 0
    rows = [row.n for row in spark.read.parquet(location).select("n").collect()]
    assert sorted(rows) == sorted([*range(80), *range(50, 80)])
