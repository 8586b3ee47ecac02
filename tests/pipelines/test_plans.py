"""How Spark plans the queries of a run."""

from __future__ import annotations

from pyspark.sql import SparkSession

from klamm.pipelines.runner import SETTINGS

CONSTRAINTS = "spark.sql.constraintPropagation.enabled"


def constraints(spark: SparkSession) -> int:
    rows = spark.range(3).filter("id > 1").selectExpr("id", "id AS again")
    return int(rows._jdf.queryExecution().optimizedPlan().constraints().size())


def test_plans_carry_no_constraints(spark: SparkSession) -> None:
    """Each batch is planned anew, and nothing but joins gains by what Spark infers of columns."""
    assert constraints(spark) > 0
    spark.conf.set(CONSTRAINTS, SETTINGS[CONSTRAINTS])
    try:
        assert constraints(spark) == 0
    finally:
        spark.conf.unset(CONSTRAINTS)
