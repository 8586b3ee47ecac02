"""Whole projects, run in one session against a broker: tables, failures, replays, schemas that change."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines import replay
from klamm.pipelines.errors import DefinitionError, PipelineError, ProjectError
from klamm.pipelines.preview import preview
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.runner import check_places, run
from klamm.pipelines.status import read_status
from klamm.pipelines.tables.upkeep import UpkeepPolicy
from tests.pipelines.projects import make_project
from tests.pipelines.running import Shop

TABLE = """
@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 50})
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders
"""

WAIT_S = 120.0


def ended(statuses: Sequence[PipelineStatus]) -> dict[str, str]:
    return {status.pipeline: status.state for status in statuses}


def by_seconds() -> Callable[[], int]:
    """A clock that moves a second whenever it is asked: pauses of retries are over soon."""
    now_ms = itertools.count(0, 1000)
    return lambda: next(now_ms)


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
    rows = shop.delta("orders").to_pyarrow_table()
    assert rows.column_names == ["n", "_topic", "_partition", "_offset", "_timestamp"]
    assert rows.group_by(["_partition", "_offset"]).aggregate([]).num_rows == 120

    shop.send(30)
    (status,) = run(shop.project, once=True, spark=spark, upkeep=UpkeepPolicy(least_files=4))
    assert (status.rows_in, status.batch, status.note) == (30, 3, "4 files merged to 1")
    shop.assert_each_once("orders")
    with klamm.Admin(klamm_bootstrap) as admin:
        assert sum(admin.group_lag(f"{shop.name}.table").values()) == 0
    batches = [
        entry["klamm"] for entry in reversed(shop.delta("orders").history()) if "batch" in entry["klamm"]
    ]
    assert [batch["rows"] for batch in batches] == [50, 50, 20, 30]
    assert all(before["end"] == after["start"] for before, after in pairwise(batches))


@pytest.mark.long
def test_a_lost_driver_disk_loses_nothing(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    """The offsets are in the table: the pipeline goes on from there, in a new attempt."""
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    for lost in (shop.project.checkpoints, shop.project.state):
        shutil.rmtree(lost)
        shop.send(60)
        (status,) = run(shop.project, once=True, spark=spark)
        assert (status.state, status.rows_out) == ("finished", 60)
        shop.assert_each_once("orders")
    assert status.generation == 3

    # With the checkpoint elsewhere the same attempt goes on.
    elsewhere = shop.root / "elsewhere"
    Path(shop.project.checkpoints).rename(elsewhere)
    shutil.rmtree(shop.project.state)
    Path(shop.project.checkpoints).parent.mkdir()
    elsewhere.rename(shop.project.checkpoints)
    shop.send(60)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.generation, status.rows_out) == ("finished", 3, 60)
    shop.assert_each_once("orders")

    old = tmp_path / "old"
    shutil.copytree(shop.project.state, old)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    shutil.rmtree(shop.project.state)
    old.rename(shop.project.state)
    shop.send(60)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.state, status.generation, status.rows_out) == ("finished", 4, 60)
    shop.assert_each_once("orders")


def test_other_machines_do_not_write_to_a_folder_of_this_one(tmp_path: Path) -> None:
    toml = (
        '[project]\nname = "shop"\ntables = "{}"\ncheckpoints = "{}"\n[spark]\nmaster = "spark://host:7077"\n'
    )
    for places, key in ((("tables", "s3://b/c"), "tables"), (("s3://b/t", "checkpoints"), "checkpoints")):
        project = make_project(tmp_path, toml=toml.format(*places))
        with pytest.raises(
            ProjectError, match=f"{key} = .* is a folder of this machine, but spark://host:7077"
        ):
            run(project)
    check_places(make_project(tmp_path, toml=toml.format("s3://b/t", "file:///mnt/shared")))


@pytest.mark.long
def test_a_table_belongs_to_one_pipeline(spark: SparkSession, klamm_bootstrap: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(60)
    run(shop.project, once=True, spark=spark)
    for place in ("orders", "orders/more"):
        shop.write(TABLE + f"\n@pipeline(to=to_table('{place}'))\ndef second(orders):\n    return orders\n")
        with pytest.raises(
            DefinitionError, match="table and second write to the same table, or to one inside"
        ):
            run(shop.project, once=True, spark=spark)
    shop.write(TABLE.replace("def table(", "def other("))
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "has no batch of other: another pipeline" in status.error
    shop.assert_each_once("orders")
    shop.write(TABLE)
    shutil.rmtree(shop.table("orders"))
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "failed" and "is gone, but table has written batches" in status.error
    planned = replay.plan(shop.project, "table", "earliest")
    assert replay.carry_out(shop.project, planned, spark=spark) == 60
    (status,) = run(shop.project, once=True, spark=spark)
    assert status.state == "finished"
    shop.assert_each_once("orders")


TWO = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@source(topic="{topic}", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=to_table("orders", partition_by=["odd"]))
def table(orders):
    return orders.withColumn("odd", F.col("n") % 2)

@pipeline(to=to_table("broken"))
def broken(orders):
    @F.udf(LongType())
    def divide(n):
        return 1 // (n - 7)
    return orders.withColumn("x", divide("n"))

@pipeline(to=to_table("misspelt"))
def misspelt(orders):
    return orders.select("nn")

@pipeline(to=iceberg("lake.shop.orders"))
def lake(orders):
    return orders

@pipeline(to=to_table("grouped"))
def grouped(orders):
    return orders.groupBy("n").count()
"""


def test_one_pipeline_fails_and_the_others_go_on_until_they_are_stopped(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TWO, run='retries = 0\non_failure = "go on"')
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
    assert "the catalog lake of the table lake.shop.orders is not known" in statuses["lake"].error
    assert "[iceberg.lake]" in statuses["lake"].error
    assert statuses["misspelt"].error.count(str(file)) == 1
    assert statuses["grouped"].error.startswith(f"{file}:29: ") and "append" in statuses["grouped"].error
    assert statuses["table"].rows_in == 40
    assert any(each["table"].rate > 0 for each in seen)
    shop.assert_each_once("orders")
    assert not spark.streams.active
    with pytest.raises(Exception, match="no pipeline called 'tabel'"):
        run(shop.project, names=["tabel"], spark=spark)


SHAKY = """
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@source(topic="{topic}", schema="n BIGINT", read={"maxOffsetsPerTrigger": 10})
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def table(orders):
    return orders

@pipeline(to=to_table("shaky"))
def shaky(orders):
    @F.udf(LongType())
    def asked(n):
        if n >= 10 and not Path("{service}").exists():
            raise OSError("the service is away")
        return n
    return orders.withColumn("n", asked("n"))
"""


def test_a_failed_pipeline_is_tried_again_and_then_ends_the_run(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    service = tmp_path / "service"
    shop = Shop(tmp_path, klamm_bootstrap, SHAKY.replace("{service}", str(service)), run="retries = 1")
    shop.send(20)
    seen: list[PipelineStatus] = []

    def on_status(statuses: Sequence[PipelineStatus]) -> None:
        seen.extend(status for status in statuses if status.pipeline == "shaky")

    statuses = run(shop.project, on_status=on_status, spark=spark, clock_ms=by_seconds())
    assert ended(statuses) == {"table": "stopped", "shaky": "failed"}
    assert "the service is away" in statuses[1].error
    assert statuses[1].batch == 0, "the first batch was finished"
    assert {(each.retry, each.retries) for each in seen if each.state == "retrying"} == {(1, 1)}
    assert all("the service is away" in each.error for each in seen if each.state == "retrying")
    assert not any(each.error for each in seen if each.state == "running")

    # With --once, too; and when the service is back, the next try succeeds.
    seen.clear()

    def mend(statuses: Sequence[PipelineStatus]) -> None:
        on_status(statuses)
        if any(status.state == "retrying" for status in statuses):
            service.touch()

    statuses = run(shop.project, once=True, on_status=mend, spark=spark, clock_ms=by_seconds())
    assert ended(statuses) == {"table": "finished", "shaky": "finished"}
    assert {each.retry for each in seen} == {0, 1} and statuses[1].error == ""
    shop.assert_each_once("shaky")


def test_a_stop_ends_the_pause_before_a_retry(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, SHAKY.replace("{service}", "/nowhere"), run="retries = 2")
    shop.send(20)
    stop = threading.Event()

    def on_status(statuses: Sequence[PipelineStatus]) -> None:
        if any(status.state == "retrying" for status in statuses):
            stop.set()

    (status,) = run(
        shop.project, names=["shaky"], on_status=on_status, stop=stop, spark=spark, clock_ms=lambda: 0
    )
    assert status.state == "failed" and "the service is away" in status.error


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
    assert planned.warnings == () and planned.replaced_rows == 60
    assert replay.carry_out(shop.project, planned, spark=spark) == 60
    shop.assert_each_once("orders")
    with pytest.raises(replay.ReplayRefused, match="was replayed after"):
        replay.carry_out(shop.project, planned, spark=spark)
    (status,) = run(shop.project, once=True, spark=spark)
    assert (status.generation, status.rows_in) == (2, 0)
    rows = shop.delta("orders").to_pyarrow_table()
    twice = [(row["n"], row["twice"]) for row in rows.to_pylist()]
    assert sorted(twice) == [(n, None if n < 60 else n * 2) for n in range(120)]

    # By offset: batches are made anew whole, so a little more than asked for.
    planned = replay.plan(shop.project, "table", {shop.topic: {"0": 10}})
    assert planned.start["orders"] == {shop.topic: {"0": 0, "1": 0}} and planned.replaced_rows == 120
    with pytest.raises(replay.ReplayRefused, match="nothing to replay"):
        replay.plan(shop.project, "table", "latest")
    assert replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark) == 120
    assert run(shop.project, once=True, spark=spark)[0].generation == 3
    shop.assert_each_once("orders")
    assert all(row["twice"] == row["n"] * 2 for row in shop.delta("orders").to_pyarrow_table().to_pylist())


@pytest.mark.long
def test_a_replay_makes_only_rows_that_its_table_can_have(
    spark: SparkSession, klamm_bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, klamm_bootstrap, TABLE)
    shop.send(120)
    run(shop.project, once=True, spark=spark)
    offset = {shop.topic: {"0": 30, "1": 30}}
    shop.write(TABLE.replace('to_table("orders")', 'to_table("orders", partition_by="_partition")'))
    with pytest.raises(PipelineError, match="is partitioned by nothing, not by _partition"):
        replay.carry_out(shop.project, replay.plan(shop.project, "table", "earliest"), spark=spark)
    shop.write(TABLE.replace("n BIGINT", "n STRING"))
    with pytest.raises(PipelineError, match="the column n is STRING now, and BIGINT in the table"):
        replay.carry_out(shop.project, replay.plan(shop.project, "table", offset), spark=spark)
    shop.assert_each_once("orders")
    shop.write(TABLE.replace("    return orders\n", '    return orders.withColumnRenamed("n", "N")\n', 1))
    planned = replay.plan(shop.project, "table", offset)
    assert planned.base == 0 and replay.carry_out(shop.project, planned, spark=spark) == 70
    shop.assert_each_once("orders")


def test_a_dead_broker_is_waited_for_once(spark: SparkSession, tmp_path: Path) -> None:
    toml = (
        '[project]\nname = "shop"\nbootstrap = "127.0.0.1:1"\n[kafka]\ndefault.api.timeout.ms = 1500\n'
        "reconnect.backoff.ms = 10\n[run]\nretries = 1\n"
    )
    text = "\n".join(
        f'@source(topic="t{number}", schema="n BIGINT")\ndef source{number}(rows):\n    return rows\n'
        f'@pipeline(to=to_table("t{number}"))\ndef to{number}(source{number}):\n    return source{number}\n'
        for number in range(5)
    )
    begun = time.monotonic()
    statuses = run(make_project(tmp_path, text, toml=toml), once=True, spark=spark, clock_ms=by_seconds())
    seconds = time.monotonic() - begun
    assert {status.state for status in statuses} == {"failed"} and len(statuses) == 5
    assert all("127.0.0.1:1" in status.error for status in statuses)
    assert seconds < 2 * (2 * 1.5 + 2), "once, and once for the retry of all"


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
