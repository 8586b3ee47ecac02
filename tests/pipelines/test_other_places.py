"""The same code elsewhere: on a cluster of two workers, and on a file system that is not this machine's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from klamm.pipelines import replay
from klamm.pipelines.hadoop import RemoteFiles
from klamm.pipelines.locations import Kind, kind_of
from klamm.pipelines.runner import run
from klamm.pipelines.sinks.folders import RemoteFolders, open_folders
from pyspark_klamm.java import find_java
from tests.pipelines.running import Shop

STARTED_S = 60.0
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


# ---- a standalone cluster


@contextmanager
def started(log: Path, ready: str, *arguments: str) -> Iterator[str]:
    """A process of Spark's; yields what `ready`, a pattern, finds in its log."""
    jars = Path(pyspark.__file__).parent / "jars"
    command = [str(find_java().home / "bin/java"), "-Xmx256m", "-cp", f"{jars}/*", *arguments]
    # Which Spark's own scripts would find out.
    scala = next(jars.glob("spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
    environment = os.environ | {
        "SPARK_HOME": str(jars.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": scala,
        "JAVA_HOME": str(find_java().home),
    }
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + STARTED_S
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.timeout(850)
@pytest.mark.long
def test_a_cluster_of_two_workers_runs_the_same_project(klamm_bootstrap: str, tmp_path: Path) -> None:
    settings = 'spark.executor.memory = "512m"\nspark.executor.cores = 1\nspark.driver.host = "127.0.0.1"'
    folder = f"file://{tmp_path}/shop"
    places = f'{folder}/tables"\ncheckpoints = "{folder}/checkpoints'
    shop = Shop(tmp_path / "shop", klamm_bootstrap, TABLES, spark=settings, tables=places)
    shop.send(80)
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        master = stack.enter_context(
            started(
                tmp_path / "master.log",
                r"spark://127\.0\.0\.1:\d+",
                *(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        for number in range(2):
            work = str(tmp_path / f"worker-{number}")
            stack.enter_context(
                started(
                    tmp_path / f"worker-{number}.log",
                    "Successfully registered with master",
                    *(f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"),
                    *("--cores", "1", "--memory", "700m", "--work-dir", work, master),
                )
            )
        child = subprocess.run(
            [sys.executable, "-m", "tests.pipelines.killed_run", str(shop.root), master],
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
    assert child.stdout.strip() == "table: finished 80", child.stderr[-3000:]
    shop.assert_each_once("orders")
    for number in range(2):
        assert list((tmp_path / f"worker-{number}").glob("app-*/*")), "both workers have had an executor"


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
