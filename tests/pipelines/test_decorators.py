from __future__ import annotations

import subprocess
import sys

import pytest

from klamm.pipelines import (
    delta,
    expect,
    iceberg,
    jdbc,
    parquet,
    pipeline,
    source,
    table,
    topic,
    transform,
)
from klamm.pipelines.decorators import MARK
from klamm.pipelines.definitions import (
    IcebergSink,
    JdbcSink,
    Node,
    ParquetSink,
    Pipeline,
    Source,
    TableSink,
    TopicSink,
    Transform,
)
from klamm.pipelines.errors import DefinitionError


def node_of(function: object) -> Node:
    node: Node = getattr(function, MARK).node
    return node


def test_a_decorated_function_stays_a_function() -> None:
    @transform
    def double(numbers):  # type: ignore[no-untyped-def]
        return numbers * 2

    assert double(4) == 8
    assert isinstance(node_of(double), Transform)


def test_a_source_keeps_all_it_is_told() -> None:
    @source(
        topic=["a", "b"],
        format="protobuf",
        schema="shop.desc",
        start="latest",
        undecodable="drop",
        read={"maxOffsetsPerTrigger": 10, "failOnDataLoss": False},
        message="shop.Order",
    )
    def orders(rows, spark):  # type: ignore[no-untyped-def]
        return rows

    node = node_of(orders)
    assert isinstance(node, Source)
    assert (node.name, node.inputs, node.wants_session) == ("orders", (), True)
    assert (node.topics, node.format, node.schema) == (("a", "b"), "protobuf", "shop.desc")
    assert (node.start, node.undecodable, node.options) == ("latest", "drop", {"message": "shop.Order"})
    assert node.read == {"maxOffsetsPerTrigger": "10", "failOnDataLoss": "false"}


def test_parameters_name_inputs_and_defaults_stay() -> None:
    @pipeline(to=topic("t"), trigger="10 seconds", mode="update")
    def joined(orders, payments, spark, window="1 minute"):  # type: ignore[no-untyped-def]
        return orders

    node = node_of(joined)
    assert isinstance(node, Pipeline)
    assert (node.inputs, node.wants_session) == (("orders", "payments"), True)
    assert (node.trigger, node.mode, node.to) == ("10 seconds", "update", TopicSink("t"))


def test_expectations_keep_the_order_in_which_they_are_read() -> None:
    @expect("first", "a > 0")
    @expect("second", "b > 0", otherwise="drop")
    @transform
    @expect("third", "c > 0", otherwise="fail")
    @expect("fourth", "d > 0", otherwise="dead_letter")
    def rows(orders):  # type: ignore[no-untyped-def]
        return orders

    rules = node_of(rows).expectations
    assert [rule.name for rule in rules] == ["first", "second", "third", "fourth"]
    assert [rule.otherwise for rule in rules] == ["warn", "drop", "fail", "dead_letter"]
    assert [rule.place.line for rule in rules] == sorted(rule.place.line for rule in rules)
    assert rules[0].place.file.name == "test_decorators.py"


def test_sinks_describe_themselves() -> None:
    assert parquet("t", partition_by="day") == ParquetSink("t", ("day",))
    assert parquet("t", partition_by=["day", "hour"]) == ParquetSink("t", ("day", "hour"))
    assert iceberg("lake.shop.orders") == IcebergSink("lake.shop.orders")
    assert iceberg("lake.eu.shop.t", partition_by="day", sort_by="a").sort_by == ("a",)
    assert iceberg("lake.eu.shop.t", partition_by="day").partition_by == ("day",)
    assert iceberg("lake.eu.shop.t").catalog == "lake"
    assert table("t", partition_by="day", sort_by=["a", "b"]) == TableSink("t", ("day",), ("a", "b"))
    assert jdbc("jdbc:x", "t", properties={"user": "u"}) == JdbcSink("jdbc:x", "t", {"user": "u"})
    assert topic("t", key="k", value="v", headers="h") == TopicSink("t", "k", "v", "h")


def good(rows):  # type: ignore[no-untyped-def]
    return rows


MISTAKES = [
    (lambda: source(topic="", schema="a INT"), "does not name a topic"),
    (lambda: source(topic=[], schema="a INT"), "does not name a topic"),
    (lambda: source(topic="t", format="jason"), "Did you mean 'json'?"),  # type: ignore[arg-type]
    (lambda: source(topic="t"), "a source of json needs a schema"),
    (lambda: source(topic="t", format="text", schema="a INT"), "a source of text takes no schema"),
    (lambda: source(topic="t", format="avro", schema="infer"), "only json and csv can be inferred"),
    (lambda: source(topic="t", format="avro", schema="a.avsc", framing="x"), "framing='x' is not valid"),
    (
        lambda: source(topic="t", format="avro", schema="a.avsc", registry="http://r"),
        "a registry needs values",
    ),
    (
        lambda: source(topic="t", format="avro", schema="a.avsc", framing="confluent", registry="r:81"),
        "the registry 'r:81' is not a valid URL",
    ),
    (lambda: source(topic="t", format="protobuf", schema="a.desc"), "needs the option message"),
    (lambda: source(topic="t", schema="a INT", read={"startingTimestamp": 1}), "start= sets where"),
    (lambda: source(topic="t", schema="a INT", timestampFromat="x"), "Did you mean timestampFormat?"),
    (lambda: source(topic="t", schema="a INT", undecodable="x"), "undecodable='x'"),  # type: ignore[arg-type]
    (lambda: source(topic="t", schema="a INT")(lambda one, two: one), "takes 2 parameters"),
    (lambda: transform(lambda *all: all), "does not name an input"),
    (lambda: transform(print), "is not a function"),
    (lambda: pipeline(to="table"), "is not a sink"),  # type: ignore[arg-type]
    (lambda: pipeline(to=topic("t"), mode="apend"), "Did you mean 'append'?"),  # type: ignore[arg-type]
    (lambda: pipeline(to=topic("t"), trigger="often"), "is not a valid interval"),
    (lambda: expect("", "a > 0"), "name is empty"),
    (lambda: expect("a", " "), "condition is empty"),
    (lambda: expect("decode", "a > 0"), "cannot be called 'decode'"),
    (lambda: expect("a", "a > 0", otherwise="warm"), "Did you mean 'warn'?"),  # type: ignore[arg-type]
    (lambda: expect("a", "a > 0")(expect("a", "b > 0")(lambda x: x)), "two expectations called 'a'"),
    (lambda: transform(transform(lambda x: x)), "is already a transform"),
    (lambda: parquet(""), "the sink's table is ''"),
    (lambda: table(""), "the sink's table is ''"),
    (lambda: delta("lake"), "table(…) writes Delta tables, without a jar"),
    (lambda: iceberg("lake.orders"), "'lake.orders' is not the name of an Iceberg table. Name catalog, n"),
    (lambda: iceberg("lake..orders"), "'lake..orders' is not the name of an Iceberg table"),
    (lambda: pipeline(to=table("t"), mode="upsert"), "the mode 'upsert', but no keys"),
    (lambda: pipeline(to=table("t"), keys="n"), "keys, but the mode 'append'"),
    (lambda: pipeline(to=table("t"), order_by="n"), "order_by or keep, but the mode 'append'"),
    (
        lambda: pipeline(to=table("t"), mode="upsert", keys="n", keep="newer"),  # type: ignore[arg-type]
        "Did you mean 'newest'?",
    ),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes_are_told_with_their_line(mistake, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DefinitionError) as refused:
        mistake()
    assert words in str(refused.value)
    assert refused.value.place is not None
    assert refused.value.place.file.name == "test_decorators.py"
    assert refused.value.place.line == mistake.__code__.co_firstlineno


def test_a_node_cannot_take_the_name_of_the_session() -> None:
    def spark(rows):  # type: ignore[no-untyped-def]
        return rows

    with pytest.raises(DefinitionError, match="cannot be called spark"):
        transform(spark)


def test_importing_the_decorators_does_not_import_spark() -> None:
    code = "import sys, klamm.pipelines, klamm.pipelines.discovery; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
