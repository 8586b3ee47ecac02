"""`klamm pipeline submit` on a real YARN: the driver runs in a container too, with what was sent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from klamm.pipelines.status import read_status
from tests.cli.commands import KLAMM, clean_environment
from tests.conftest import cannot_run
from tests.peers.hdfs import Hdfs
from tests.peers.kafka_jars import PeerMissing
from tests.peers.yarn import Yarn
from tests.pipelines.running import Shop
from tests.pipelines.standalone import bare_python
from tests.spark.topics import records_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SUBMITTED_S = 430.0
PIPELINES = """
from pyspark.sql import functions as F
from rates import RATE

@source(topic="{topic}", schema="n BIGINT")
def orders(rows):
    return rows.withWatermark("_timestamp", "1 day")

@pipeline(to=to_table("distinct"))
def distinct(orders):
    return orders.dropDuplicatesWithinWatermark(["n"]).withColumn("rate", F.lit(RATE))

@pipeline(to=topic("{topic}.large"))
def large(orders):
    return orders.filter("n > 10").selectExpr("CAST(n AS STRING) AS value")
"""


@pytest.fixture
def hdfs(tmp_path: Path) -> Iterator[Hdfs]:
    (tmp_path / "hdfs").mkdir()
    try:
        server = Hdfs(tmp_path / "hdfs")
    except PeerMissing as problem:
        cannot_run(problem)
    with server:
        yield server


@pytest.fixture
def yarn(hdfs: Hdfs, tmp_path: Path) -> Iterator[Yarn]:
    (tmp_path / "yarn").mkdir()
    path = f"{bare_python(tmp_path / 'python')}:{os.environ['PATH']}"
    with Yarn(tmp_path / "yarn", hdfs.uri, {"PATH": path}) as started:
        yield started


def test_a_submitted_project_runs_and_goes_on(
    hdfs: Hdfs, yarn: Yarn, klamm_bootstrap: str, tmp_path: Path
) -> None:
    jars = f"local:{Path(pyspark.__file__).parent}/jars/*"
    settings = f"""
        spark.executor.memory = "512m"
        spark.executor.instances = 1
        spark.driver.memory = "768m"
        spark.sql.shuffle.partitions = 2
        spark.yarn.jars = "{jars}"
        spark.yarn.maxAppAttempts = 1
    """
    root = f"{hdfs.uri}/shop"
    places = f'{root}/tables"\ncheckpoints = "{root}/checkpoints"\nstate = "{root}/state'
    shop = Shop(tmp_path / "shop", klamm_bootstrap, PIPELINES, spark=settings, tables=places)
    (shop.root / "rates.py").write_text("RATE = 3\n")

    def submit() -> int:
        done = subprocess.run(
            [KLAMM, "pipeline", "submit", "--master", "yarn", "--once"],
            cwd=shop.root,
            env=clean_environment(HADOOP_CONF_DIR=str(yarn.settings)),
            capture_output=True,
            text=True,
            timeout=SUBMITTED_S,
        )
        print(done.stderr[-3000:], yarn.log()[-20000:])
        return done.returncode

    shop.send(40)
    assert submit() == 0
    # The second driver has another folder. It finds what the first one has left at the URIs.
    shop.send_raw(b'{"n": %d}' % n for n in range(20, 60))
    assert submit() == 0
    table = DeltaTable(f"{root}/tables/distinct").to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(60)) and set(table["rate"].to_pylist()) == {3}
    large = sorted(int(record.value) for record in records_of(shop.bootstrap, f"{shop.topic}.large"))
    assert large == sorted([*range(11, 40), *range(20, 60)])
    # From here, too, one can see how the project is doing.
    assert {(status.pipeline, status.state) for status in read_status(shop.project)} == {
        ("distinct", "finished"),
        ("large", "finished"),
    }
