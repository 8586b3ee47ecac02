"""A session that stays, with a real broker and Spark: what is shown after saves, and that nothing of one use
reaches the next."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines.dev.saves import Compared, Found, Part, Saves, Shown, Superseded
from klamm.pipelines.dev.sessions import LastingSession
from klamm.testing import Broker
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce

ORDERS = """
import os
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from pipelines._factor import FACTOR

@source(topic="orders", schema="n BIGINT")
def orders(rows):
    return rows

@transform
def scaled(orders, spark):
    views = [each.name for each in spark.catalog.listTables()] + [
        each.name for each in spark.catalog.listTables("global_temp")
    ]
    found = [*views, spark.conf.get("shop.mark", ""), os.environ.get("SHOP_MARK", "")]
    found += [str(spark.catalog.functionExists("shop_function"))]
    orders.createOrReplaceTempView("shop_view")
    orders.createOrReplaceGlobalTempView("shop_global_view")
    spark.conf.set("shop.mark", "left behind")
    spark.udf.register("shop_function", lambda n: n)
    os.environ["SHOP_MARK"] = "left behind"
    spark.range(3).cache().count()
    assert SparkSession.getActiveSession() is spark

    @F.udf(LongType())
    def times(n):
        from pipelines._factor import FACTOR as imported_in_the_worker
        return n * FACTOR * 100 + imported_in_the_worker

    return orders.select("*", times("n").alias("m"), F.lit(repr(found)).alias("found"))

@pipeline(to=to_table("scaled"))
def scaled_table(scaled):
    return scaled

@pipeline(to=to_table("orders"))
def orders_table(orders):
    return orders
""".replace("import os\n", "import os\nfrom pyspark.sql import SparkSession\n", 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders")
        yield broker


def of(parts: list[Part], kind: type) -> list:  # type: ignore[type-arg]
    return [part for part in parts if isinstance(part, kind)]


@pytest.mark.long
def test_saves_are_shown_and_leave_nothing_behind(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_MARK", raising=False)
    # Python workers find the project's files here, and would keep what they import.
    monkeypatch.setattr(sys, "path", [*sys.path])
    context = spark.sparkContext
    monkeypatch.setitem(context.environment, "KLAMM_FORGOTTEN_FOLDERS", str(tmp_path))
    monkeypatch.setitem(context.environment, "PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    produce(broker.bootstrap, "orders", *[json.dumps({"n": n}) for n in (1, 2, 3)])

    def save(factor: int, orders: str = ORDERS) -> frozenset[Path]:
        make_project(tmp_path, {"orders.py": orders, "_factor.py": ""})
        (tmp_path / "pipelines/_factor.py").write_text(f"FACTOR = {factor}\n")
        return frozenset([tmp_path / "pipelines/orders.py", tmp_path / "pipelines/_factor.py"])

    save(1)
    project = make_project(tmp_path, {"orders.py": ORDERS}, bootstrap=broker.bootstrap)
    superseded: list[bool] = []
    saves = Saves(project, LastingSession(spark), last=2, compared=3, is_superseded=lambda: bool(superseded))
    try:
        start = list(saves.after(frozenset()))
        assert [each.node for each in of(start, Shown)] == ["scaled_table", "orders_table"]
        assert not of(start, Compared)
        assert list(saves.prepare()) == ["scaled_table", "orders_table"]
        assert list(saves.prepare()) == []

        # A helper of the same size, within a second: the nodes that use it, and their pipelines.
        (shown,) = of(parts := list(saves.after(save(2))), Shown)
        assert (shown.node, shown.error) == ("scaled", "")
        names = shown.preview.columns
        assert [row[names.index("m")] for row in shown.preview.rows] == [602, 402]
        assert {row[names.index("found")] for row in shown.preview.rows} == {"['', '', 'False']"}
        (compared,) = of(parts, Compared)
        (scaled,) = compared.differences
        assert (scaled.pipeline, len(scaled.rows.changed)) == ("scaled_table", 3)
        where = scaled.columns.index("m")
        assert sorted((each.before[where], each.after[where]) for each in scaled.rows.changed) == [
            (101, 202),
            (201, 402),
            (301, 602),
        ]

        # What is superseded has not happened.
        superseded.append(True)
        with pytest.raises(Superseded):
            list(saves.after(save(3)))
        superseded.clear()

        # A save that cannot be imported, and one that fails: the last version that worked is compared with.
        broken = list(saves.after(save(3, ORDERS + "\n1 / 0\n")))
        assert [type(part) for part in broken] == [Found]
        assert "ZeroDivisionError" in str(broken[0].findings[0])
        failing = list(saves.after(save(3, ORDERS.replace('"m"', "1"))))
        assert "scaled" in of(failing, Shown)[0].error
        assert of(failing, Compared)[0].differences[0].error
        mended = list(saves.after(save(3)))
        assert [each.node for each in of(mended, Shown)] == ["scaled"]
        (scaled,) = of(mended, Compared)[0].differences
        assert {each.before[where] for each in scaled.rows.changed} == {202, 402, 602}
        assert {each.after[where] for each in scaled.rows.changed} == {303, 603, 903}

        # Newer records count with the next save, for both versions.
        assert not saves.has_news()
        produce(broker.bootstrap, "orders", '{"n": 5}')
        (shown,) = of(parts := list(saves.after(save(4))), Shown)
        assert [row[names.index("m")] for row in shown.preview.rows] == [2004, 1204]
        (scaled,) = of(parts, Compared)[0].differences
        changed = [(each.before[where] // 100, each.after[where] // 100) for each in scaled.rows.changed]
        assert sorted(changed) == [(6, 8), (9, 12), (15, 20)]
        assert saves.neighbour(1) == "scaled_table"
        (shown,) = saves.show("orders")
        assert isinstance(shown, Shown) and shown.preview is not None
        assert [row[0] for row in shown.preview.rows] == [5, 3]
        assert "SHOP_MARK" not in os.environ
        assert SparkSession.getActiveSession() is spark
        assert not spark.catalog.listTables("global_temp")
        assert context._jsc.getPersistentRDDs().isEmpty()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
