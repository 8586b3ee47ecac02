"""What lint finds, each with its line and what to do; and that it finds nothing where nothing is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines.decoding import registry
from klamm.pipelines.findings import Finding
from klamm.pipelines.lint import check
from klamm.pipelines.project import Project
from klamm.testing import Broker
from tests.pipelines.messages import ORDER_AVSC, order_descriptors
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce

GOOD = """
@source(topic="orders", schema="id STRING, amount DOUBLE")
@expect("amount is positive", "amount > 0 AND _topic = 'orders'", otherwise="dead_letter")
def orders(rows):
    return rows

@pipeline(to=to_table("t"))
def table(orders):
    return orders
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            for name in ("orders", "lines", "binary"):
                admin.create_topic(name, partitions=2)
        produce(broker.bootstrap, "orders", '{"id": "a", "amount": 1}', None)
        produce(broker.bootstrap, "lines", "a,b", "a,b,c")
        produce(broker.bootstrap, "binary", b"\xff\xff")
        yield broker


def lines(findings: list[Finding]) -> list[str]:
    return [
        f"{one.place.file.name}:{one.place.line} {one.severity}: {one.what}. {one.advice}" for one in findings
    ]


def offline(root: Path, text: str) -> list[str]:
    return lines(check(make_project(root, text), records=False))


def test_nothing_is_found_where_nothing_is_wrong(broker: Broker, tmp_path: Path) -> None:
    assert check(make_project(tmp_path, GOOD, bootstrap=broker.bootstrap)) == []
    with klamm.Admin(broker.bootstrap) as admin:
        assert "shop.dead-letters" not in admin.list_topics(), "a look changes nothing"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (
            "def table(orders)",
            "def table(ordres)",
            "error: table has a parameter 'ordres', but there is no source",
        ),
        (
            "amount > 0",
            "amuont > 0",
            "4 error: the expectation 'amount is positive' names amuont, which is no",
        ),
        ("amount DOUBLE", "amount DUOBLE", "error: orders: the schema does not parse at character 19"),
        (
            'schema="id STRING, amount DOUBLE"',
            'schema="infer"',
            "warning: the schema of orders is not inferred",
        ),
        ('schema="id STRING, amount DOUBLE"', 'schema="x.json"', "x.json cannot be read"),
        (
            'topic="orders"',
            'topic="shop.dead-letters"',
            "error: orders reads shop.dead-letters, to which its own",
        ),
        ('topic="orders"', 'topic="orders,other"', "error: 'orders,other' is not a valid topic name"),
        (
            'topic="orders"',
            'topic="orders", start="soon"',
            "error: start of orders: 'soon' is not a valid starting point",
        ),
        ('topic="orders"', 'topic="orders", read={"maxOffsetPerTrigger": 1}', "error: read of orders:"),
        ('to_table("t")', 'topic("orders")', "which it also reads, through orders"),
        ('to_table("t")', 'topic("shop.dead-letters")', "which is the dead-letter topic"),
        ('to_table("t")', 'topic("a b")', "'a b' is not a valid topic name"),
        ("def table(orders)", "def table(spark)", "warning: no pipeline uses the source orders"),
        ("    return orders\n", "    return orders +\n", "SyntaxError"),
        ('to=to_table("t")', 'to=to_table("t"), mode="update"', "does not support the mode 'update'"),
        ('to_table("t")', 'iceberg("lake.s.t")', "the catalog lake of the table lake.s.t is not configured"),
    ],
)
def test_faults_are_found_with_their_line(tmp_path: Path, old: str, new: str, found: str) -> None:
    assert old in GOOD
    told = offline(tmp_path, GOOD.replace(old, new))
    assert any(found in line for line in told), told
    assert all(line.startswith("orders.py:") for line in told)


def test_more_faults_are_found_at_once(tmp_path: Path) -> None:
    text = GOOD + (
        "\n@transform\ndef a(b):\n    return b\n\n@transform\ndef b(a):\n    return a\n"
        '\n@pipeline(to=to_table("t"))\ndef again(b):\n    return b\n'
    )
    told = offline(tmp_path, text)
    assert [line for line in told if "in a circle: a → b → a" in line]
    assert [line for line in told if "again writes to the table t, as does table at" in line]
    assert offline(tmp_path, GOOD[: GOOD.index("@pipeline")]) == [
        "klamm.toml:1 warning: the project has no pipeline, so nothing runs. Write a function under "
        "@pipeline that takes one of the transforms or sources"
    ]


def test_one_table_by_two_names_is_found(tmp_path: Path) -> None:
    again = (
        f'\n@pipeline(to=to_table("{tmp_path}/tables/../tables/t"))\ndef again(orders):\n    return orders\n'
    )
    (told,) = offline(tmp_path, GOOD + again)
    assert "as does table at" in told


def test_no_broker_is_a_warning(tmp_path: Path) -> None:
    project = replace(
        make_project(tmp_path, GOOD, bootstrap="127.0.0.1:1"), kafka={"default.api.timeout.ms": "300"}
    )
    (finding,) = check(project)
    assert finding.severity == "warning"
    assert "127.0.0.1:1 does not answer" in finding.what


def test_topics_that_are_not_there(broker: Broker, tmp_path: Path) -> None:
    text = GOOD.replace('topic="orders"', 'topic="ordrs"').replace('to_table("t")', 'topic("revenue")')
    told = lines(check(make_project(tmp_path, text, bootstrap=broker.bootstrap)))
    assert told[0].endswith("error: there is no topic ordrs. Did you mean orders?")
    assert "warning: there is no topic revenue yet" in told[1]


def sampled(broker: Broker, root: Path, arguments: str) -> list[str]:
    text = GOOD.replace('topic="orders", schema="id STRING, amount DOUBLE"', arguments)
    text = text.replace("@expect", "# @expect")
    project: Project = make_project(root, text, bootstrap=broker.bootstrap)
    project.schemas.mkdir()
    (project.schemas / "order.avsc").write_text(json.dumps(ORDER_AVSC))
    (project.schemas / "shop.desc").write_bytes(order_descriptors())
    return lines(check(project))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('topic="orders", schema="id INT, amount DOUBLE"', "error: 1 of the newest 1 records do not fit"),
        (
            'topic="orders", schema="id INT, amount DOUBLE"',
            "orders-0 at offset 0: id is 'a', which does not fit INT",
        ),
        (
            'topic="orders", schema="id STRING"',
            "warning: records of orders have fields that its schema does not",
        ),
        (
            'topic="lines", format="csv", schema="a STRING, b STRING"',
            "warning: 1 of the newest 2 records do not",
        ),
        ('topic="lines", format="csv", schema="a STRING, b STRING"', "it has 3 columns, the schema 2"),
        ('topic="binary", format="text"', "it is not UTF-8"),
        ('topic="binary", format="avro", schema="order.avsc"', "error: 1 of the newest 1 records"),
        (
            'topic="binary", format="protobuf", schema="shop.desc", message="shop.Order"',
            "the value is not a shop.Order. Such records go to the dead-letter topic",
        ),
    ],
)
def test_records_that_do_not_fit(broker: Broker, tmp_path: Path, arguments: str, found: str) -> None:
    told = sampled(broker, tmp_path, arguments)
    assert len(told) == 1
    assert found in told[0]


def test_a_registry_that_does_not_answer_is_told_and_not_the_records(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PAUSES_S", ())
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send("framed", b"\0\0\0\0\7.").result()
    (told,) = sampled(
        broker,
        tmp_path,
        'topic="framed", format="avro", schema="order.avsc", framing="confluent", registry="http://127.0.0.1:1"',
    )
    assert "warning: orders: the schema registry has not answered http://127.0.0.1:1/schemas/ids/7" in told


def test_records_that_fit_are_not_found(broker: Broker, tmp_path: Path) -> None:
    assert not sampled(broker, tmp_path, 'topic="binary", format="binary"')


def test_plans_that_were_not_looked_at_are_told(tmp_path: Path) -> None:
    project = make_project(tmp_path, GOOD.replace('schema="', 'schema="nonsense '))
    told = lines(check(project, records=False, deep=True))
    assert [line for line in told if "the plans were not checked. Fix the errors first" in line]


def test_deep_asks_spark(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    text = (
        GOOD
        + """
@pipeline(to=to_table("grouped"))
def grouped(orders):
    return orders.groupBy("id").count()

@pipeline(to=to_table("wrong"))
def wrong(orders):
    return orders.select("nothing")

@pipeline(to=to_table("older"))
def older(orders):
    return orders.selectExpr("id", "amount * 2 AS amount")
"""
    )
    project = make_project(tmp_path, text, bootstrap=broker.bootstrap)
    there = pa.table({"id": ["a"], "amount": ["1"], "gone": [True]})
    write_deltalake(f"{project.tables}/older", there)
    told = lines(check(project, deep=True, spark=spark))
    assert len(told) == 3, told
    assert "error: grouped cannot run in the mode 'append'" in told[0]
    assert "error: the pipeline wrong failed: AnalysisException" in told[1]
    assert told[1].startswith("orders.py:18 ")
    assert "Project [" not in told[1], "no plans"
    what = f"error: the column amount is DOUBLE now, and STRING in the table {project.tables}/older. Cast"
    assert what in told[2]
    narrow = there.select(["id", "gone"])
    write_deltalake(f"{project.tables}/older", narrow, mode="overwrite", schema_mode="overwrite")
    told = lines(check(project, deep=True, spark=spark))
    assert "warning: older no longer has columns that its table has: gone" in told[2]
    with klamm.Admin(broker.bootstrap) as admin:
        assert "shop.dead-letters" not in admin.list_topics(), "a look changes nothing"


def test_it_does_not_start_spark(tmp_path: Path) -> None:
    make_project(tmp_path, GOOD)
    code = (
        "import sys\nfrom klamm.pipelines import lint, project\n"
        f"found = lint.check(project.Project.load({str(tmp_path)!r}), records=False)\n"
        "print(found, 'py4j.java_gateway' in sys.modules and sys.modules['pyspark'].SparkContext._gateway)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[] None", "[] False")
