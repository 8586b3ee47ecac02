"""Users' tests of their pipelines: the fixture, what it gives and takes, and its faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from klamm.pipelines.errors import ProjectError
from klamm.testing.pipelines import FaultInjected, Message, PipelineFailed, PipelinesProject
from tests.moments import MIDNIGHT_MS
from tests.pipelines.projects import make_project

Make = Callable[..., PipelinesProject]

TOML = """
[project]
name = "shop"
bootstrap = "production:9092"
tables = "s3://production/tables"

[spark]
master = "spark://production:7077"
spark.sql.session.timeZone = "Asia/Tokyo"

[storage]
aws_secret_access_key = "${env:A_SECRET_OF_PRODUCTION}"
"""

PIPELINES = """
from pyspark.sql import functions as F

@source(topic="orders", schema="orders.json")
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
def orders(rows):
    return rows

@pipeline(to=to_table("orders"))
def orders_table(orders):
    return orders.withColumn("zone", F.current_timezone())

@pipeline(to=topic("large", key="order_id"))
def large(orders):
    return orders.filter("amount > 5").select("order_id", "amount")
"""

COLUMNS = {
    "type": "struct",
    "fields": [
        {"name": "order_id", "type": "string", "nullable": True, "metadata": {}},
        {"name": "amount", "type": "double", "nullable": True, "metadata": {}},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_project(tmp_path, PIPELINES)
    (tmp_path / "klamm.toml").write_text(TOML)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/orders.json").write_text(json.dumps(COLUMNS))
    return tmp_path


def test_records_come_out_as_rows_and_dead_letters(klamm_pipelines: Make, folder: Path) -> None:
    project = klamm_pipelines(folder)
    project.given(
        "orders", [{"order_id": "2", "amount": 9.5}, {"order_id": "1", "amount": 4.5}], key="order_id"
    )
    project.given("orders", ["nonsense", Message(b'{"order_id": "3", "amount": -1}', timestamp=MIDNIGHT_MS)])
    statuses = project.run_until_done()
    assert (statuses["orders_table"].rows_in, statuses["orders_table"].rows_out) == (4, 2)
    assert project.table("orders") == [
        {"order_id": "1", "amount": 4.5, "zone": "Asia/Tokyo"},
        {"order_id": "2", "amount": 9.5, "zone": "Asia/Tokyo"},
    ]
    assert [row["order_id"] for row in project.table("orders", sort_by=["amount"])] == ["1", "2"]
    assert [row["_offset"] for row in project.table("orders", coordinates=True)] == [1, 0]
    assert project.arrow("orders").num_rows == 2
    assert project.topic("large") == [{"order_id": "2", "amount": 9.5}]
    assert [record.key for record in project.records("large")] == [b"2"]
    letters = [letter for letter in project.dead_letters() if letter.pipeline == "orders_table"]
    assert [(letter.value, letter.rule, letter.offset) for letter in letters] == [
        ("nonsense", "decode", 2),
        ({"order_id": "3", "amount": -1}, "amount is positive", 3),
    ]
    assert project.spark.conf.get("spark.sql.session.timeZone") != "Asia/Tokyo", (
        "the session is for all tests"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["klamm.toml", "pipelines", "schemas"]


def test_a_fault_is_followed_by_a_run_that_goes_on(klamm_pipelines: Make, folder: Path) -> None:
    project = klamm_pipelines(folder)
    project.given("orders", [{"order_id": "1", "amount": 4.5}])
    with project.fault("after commit", pipeline="orders_table"):
        project.run_until_done("orders_table")
        pytest.fail("the run was not broken off")
    assert len(project.table("orders")) == 1
    project.given("orders", [{"order_id": "2", "amount": 4.5}])
    with (
        pytest.raises(AssertionError, match="the fault 'before commit' has not struck"),
        project.fault("before commit", pipeline="orders_table", after=5),
    ):
        project.run_until_done("orders_table")
    assert [row["order_id"] for row in project.table("orders")] == ["1", "2"]
    not_a_moment = "'at noon' is not a moment of a batch: there are before write, "
    with pytest.raises(ValueError, match=not_a_moment), project.fault("at noon"):
        pass
    not_a_table = "large writes to topic large: faults are for tables"
    with pytest.raises(ValueError, match=not_a_table), project.fault("before commit", pipeline="large"):
        pass


def test_a_fault_also_ends_pipelines_that_read_the_table(klamm_pipelines: Make, tmp_path: Path) -> None:
    make_project(
        tmp_path,
        """
        @source(topic="orders", schema="n BIGINT")
        def orders(rows): return rows

        @pipeline(to=to_table("bronze"))
        def bronze(orders): return orders

        @source(table="bronze")
        def bronze_rows(rows): return rows

        @pipeline(to=to_table("silver"))
        def silver(bronze_rows): return bronze_rows
        """,
    )
    project = klamm_pipelines(tmp_path)
    project.given("orders", [{"n": 1}])
    with project.fault("before commit", pipeline="bronze"):
        project.run_until_done()
        pytest.fail("the run was not broken off")
    with pytest.raises(ProjectError, match="there is no table bronze yet"):
        project.table("bronze")


@pytest.mark.long
def test_each_row_is_there_once_after_faults_at_all_moments(klamm_pipelines: Make, folder: Path) -> None:
    project = klamm_pipelines(folder, partitions=2)
    for number, moment in enumerate(project.moments()):
        project.given("orders", [{"order_id": f"{number}", "amount": 4.5}])
        with project.fault(moment):
            project.run_until_done("orders_table")
    project.run_until_done()
    assert [row["order_id"] for row in project.table("orders")] == [str(each) for each in range(number + 1)]


def test_a_pipeline_that_fails_fails_the_test(klamm_pipelines: Make, tmp_path: Path) -> None:
    make_project(
        tmp_path,
        """
        @source(topic="orders", schema="n BIGINT")
        def orders(rows):
            return rows.filter("m > 1")

        @pipeline(to=to_table("orders"))
        def orders_table(orders):
            return orders

        @pipeline(to=to_table("/production/orders"))
        def elsewhere(orders):
            return orders
        """,
    )
    project = klamm_pipelines(tmp_path)
    with pytest.raises(
        ProjectError, match="elsewhere writes to table /production/orders, which is not a place"
    ):
        project.run_until_done()
    with pytest.raises(PipelineFailed, match=r"orders_table: .*orders.py:.*m.* cannot be resolved"):
        project.run_until_done("orders_table")
    with pytest.raises(PipelineFailed), project.fault("before commit"):
        project.run_until_done("orders_table")
    with pytest.raises(ProjectError, match="there is no table orders yet"):
        project.table("orders")
    assert not issubclass(FaultInjected, PipelineFailed)


def test_dictionaries_become_what_the_source_reads(klamm_pipelines: Make, tmp_path: Path) -> None:
    make_project(
        tmp_path,
        """
        @source(topic="orders", format="avro", schema="order.avsc", framing="confluent")
        def orders(rows):
            return rows

        @source(topic="lines", format="text")
        def lines(rows):
            return rows

        @pipeline(to=to_table("orders"))
        def orders_table(orders):
            return orders
        """,
    )
    (tmp_path / "schemas").mkdir()
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    (tmp_path / "schemas/order.avsc").write_text(json.dumps(schema))
    project = klamm_pipelines(tmp_path)
    order = {"id": 7, "at": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    project.given("orders", [order])
    project.run_until_done()
    assert project.table("orders") == [order]
    with pytest.raises(TypeError, match="lines reads text: give its records as text or bytes"):
        project.given("lines", [{"value": "a line"}])
    with pytest.raises(ValueError, match="a record has no field customer, which is to be its key"):
        project.given("unread", [{"n": 1}], key="customer")


def test_pytest_loads_neither_spark_nor_pipelines_for_the_plugin() -> None:
    code = """
import klamm.testing.pytest_plugin, sys
print([name for name in sys.modules if name.split(".")[0] in ("pyspark", "deltalake", "pyarrow")
       or name.startswith("klamm.pipelines")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ICEBERG = """
@source(topic="orders", schema="n BIGINT")
def orders(rows):
    return rows

@pipeline(to=iceberg("lake.shop.orders"))
def lake(orders):
    return orders
"""


@pytest.mark.long
def test_catalogs_are_files_of_the_test(klamm_pipelines: Make, tmp_path: Path) -> None:
    make_project(tmp_path, ICEBERG)
    (tmp_path / "klamm.toml").write_text(
        TOML + '[iceberg.lake]\ntype = "rest"\nuri = "https://production.example.org"\n'
    )
    project = klamm_pipelines(tmp_path)
    project.given("orders", [{"n": 1}, {"n": 2}])
    with project.fault("after commit", pipeline="lake"):
        project.run_until_done()
    project.run_until_done()
    assert project.table("lake.shop.orders") == [{"n": 1}, {"n": 2}]
