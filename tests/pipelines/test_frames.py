"""What users write, in running queries: joins, windows, state, functions of their own, and their mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines.errors import DefinitionError, GraphError, SchemaError, UserCodeError
from klamm.testing import Broker
from tests.pipelines.projects import COUNT, make_project
from tests.pipelines.queries import build, produce, run_once

SHOP = """
from pyspark.sql import functions as F

from pipelines._helpers import shouted


@source(topic="orders", schema="id STRING, customer STRING, amount DOUBLE, at TIMESTAMP")
def orders(rows):
    return rows.withWatermark("at", "1 minute")

@source(topic="payments", schema="order_id STRING, paid TIMESTAMP")
def payments(rows):
    return rows.withWatermark("paid", "1 minute")

@transform
def customers(spark):
    return spark.createDataFrame([("ann", "DE"), ("bob", "FR")], "customer STRING, country STRING")

@pipeline(to=to_table("paid"))
def paid_orders(orders, payments):
    same = (orders.id == payments.order_id) & F.expr("paid BETWEEN at AND at + INTERVAL 1 HOUR")
    return orders.join(payments, same)

@pipeline(to=to_table("enriched"))
def enriched(orders, customers):
    return orders.join(customers, "customer", "left")

@pipeline(to=topic("revenue"), mode="update")
@expect("some revenue", "revenue > 0", otherwise="drop")
def revenue(orders):
    by_minute = orders.groupBy(F.window("at", "1 minute"), "customer")
    return by_minute.agg(F.sum("amount").alias("revenue"))

@pipeline(to=to_table("twice"))
def twice(orders):
    return orders.unionByName(orders)

@pipeline(to=to_table("shouted"))
def shouting(orders):
    return orders.withColumn("customer", shouted("customer"))
"""

HELPERS = """
from pyspark.sql import functions as F


def loud(name):
    return name.upper() + "!"


@F.udf("string")
def shouted(name):
    return loud(name)
"""

STATEFUL = (
    COUNT
    + """
@source(topic="orders", schema="id STRING, customer STRING")
def orders(rows):
    return rows

@pipeline(to=topic("counts"), mode="update")
def counts(orders):
    grouped = orders.groupBy("customer")
    return grouped.transformWithState(Count(), "customer STRING, n BIGINT", "Update", "None")
"""
)


def order(name: str, customer: str, amount: float, minute: int) -> str:
    at = f"2026-01-31T12:{minute:02d}:00Z"
    return json.dumps({"id": name, "customer": customer, "amount": amount, "at": at})


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            for topic in ("orders", "payments", "empty", "records"):
                admin.create_topic(topic, partitions=2)
        orders = [
            order("a", "ann", 2, 0),
            order("b", "bob", 3, 0),
            order("c", "ann", 4, 0),
            order("d", "x", -1, 5),
        ]
        produce(broker.bootstrap, "orders", *orders)
        produce(broker.bootstrap, "payments", '{"order_id": "a", "paid": "2026-01-31T12:10:00Z"}')
        yield broker


@pytest.mark.long
def test_streams_are_joined_with_streams(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    project = make_project(tmp_path, {"shop.py": SHOP, "_helpers.py": HELPERS}, bootstrap=broker.bootstrap)
    rows, counts = run_once(project, "paid_orders", spark)
    assert [(row["id"], row["order_id"]) for row in rows] == [("a", "a")]
    assert "_topic" not in rows[0].asDict(), "both sides carried one: nobody could say which it is"
    assert (counts["orders"].rows, counts["payments"].rows, counts["paid_orders"].rows) == (4, 1, 1)


def test_streams_are_joined_with_tables_and_aggregated(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    project = make_project(tmp_path, {"shop.py": SHOP, "_helpers.py": HELPERS}, bootstrap=broker.bootstrap)
    rows, _ = run_once(project, "enriched", spark)
    assert {(row["id"], row["country"]) for row in rows} == {
        ("a", "DE"),
        ("b", "FR"),
        ("c", "DE"),
        ("d", None),
    }
    assert {row["_offset"] for row in rows} == {0, 1, 2, 3}

    rows, counts = run_once(project, "revenue", spark)
    assert {(row["customer"], row["revenue"]) for row in rows} == {("ann", 6.0), ("bob", 3.0)}
    assert rows[0]["window"]["start"] is not None
    assert counts["revenue"].rules == {"some revenue": 1}


@pytest.mark.long
def test_functions_of_the_project_reach_the_workers(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    project = make_project(tmp_path, {"shop.py": SHOP, "_helpers.py": HELPERS}, bootstrap=broker.bootstrap)
    rows, _ = run_once(project, "shouting", spark)
    assert {row["customer"] for row in rows} == {"ANN!", "BOB!", "X!"}
    rows, _ = run_once(project, "twice", spark)
    assert sorted(row["id"] for row in rows) == sorted("abcd" * 2)


@pytest.mark.long
def test_state_lives_over_restarts(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with klamm.Admin(broker.bootstrap) as admin:
        admin.create_topic("stateful")
    project = make_project(tmp_path, STATEFUL.replace('"orders"', '"stateful"'), bootstrap=broker.bootstrap)
    produce(
        broker.bootstrap,
        "stateful",
        order("a", "ann", 1, 0),
        order("b", "bob", 1, 0),
        order("c", "ann", 1, 0),
    )
    rows, _ = run_once(project, "counts", spark)
    assert {(row["customer"], row["n"]) for row in rows} == {("ann", 2), ("bob", 1)}
    produce(broker.bootstrap, "stateful", order("d", "ann", 1, 0))
    rows, _ = run_once(project, "counts", spark)
    assert [(row["customer"], row["n"]) for row in rows] == [("ann", 3)]


@pytest.mark.long
def test_a_schema_is_inferred_and_then_gains_fields(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    text = """
    @source(topic="records", schema="infer")
    def records(rows):
        return rows

    @pipeline(to=to_table("t"))
    def table(records):
        return records
    """
    project = make_project(tmp_path, text, bootstrap=broker.bootstrap)
    with pytest.raises(SchemaError, match="there are no records"):
        build(project, "table", spark)
    produce(broker.bootstrap, "records", '{"id": 1}')
    rows, counts = run_once(project, "table", spark)
    assert [row["id"] for row in rows] == [1]
    assert (tmp_path / "schemas/records.json").exists()

    values = ['{"id": 2, "colour": "red"}'] * 100 + ['{"id": "two"}']
    produce(broker.bootstrap, "records", *values)
    rows, counts = run_once(project, "table", spark)
    assert "colour" not in rows[0].asDict()
    assert (counts["records"].unknown_fields, counts["records"].unknown_field) == (1, "colour")
    assert (counts["records"].undecodable, len(rows)) == (1, 100)


MISTAKES = {
    "unresolved": ("orders.select('nothing')", "the pipeline table failed: AnalysisException", UserCodeError),
    "divided": ("1 / 0", "ZeroDivisionError: division by zero", UserCodeError),
    "nothing": ("None", "returned NoneType, not a DataFrame", DefinitionError),
    "no stream": ("spark.range(3)", "does not come from a source", DefinitionError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_with_the_users_line(
    spark: SparkSession, broker: Broker, tmp_path: Path, mistake: str
) -> None:
    expression, words, kind = MISTAKES[mistake]
    text = f"""
    @source(topic="orders", format="text")
    def orders(rows):
        return rows

    @pipeline(to=to_table("t"))
    def table(orders, spark):
        return {expression}
    """
    project = make_project(tmp_path, text, bootstrap=broker.bootstrap)
    with pytest.raises(kind) as told:
        build(project, "table", spark)
    assert words in str(told.value)
    assert len(str(told.value)) < 1000, "no plans, no stacks"
    line = 9 if kind is UserCodeError else 7
    assert told.value.place == (tmp_path / "pipelines/orders.py", line)


def test_what_is_not_there_is_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    project = make_project(tmp_path, {"shop.py": SHOP, "_helpers.py": HELPERS}, bootstrap=broker.bootstrap)
    project = replace(project, dead_letters="unused")
    frame = build(project, "orders", spark, streaming=False, last=2)
    assert {row["id"] for row in frame.collect()} == {"c", "d"}
    broken = SHOP.replace("def enriched(orders, customers)", "def enriched(orders, costumers)")
    project = make_project(tmp_path, {"shop.py": broken, "_helpers.py": HELPERS}, bootstrap=broker.bootstrap)
    with pytest.raises(GraphError, match="Did you mean customers"):
        build(project, "enriched", spark)
