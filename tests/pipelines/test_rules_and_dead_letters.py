"""Rules on rows in running queries: what stays, what is counted, and what becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import klamm
from klamm.pipelines.errors import DefinitionError
from klamm.pipelines.failures import explain
from klamm.pipelines.preview import PreviewFailed, preview
from klamm.testing import Broker
from tests.pipelines.projects import make_project
from tests.pipelines.queries import build, produce, run_once
from tests.spark.topics import records_of

ORDERS = """
from pyspark.sql import functions as F

@source(topic="orders", schema="id STRING, amount DOUBLE, kind STRING")
@expect("has a kind", "kind IS NOT NULL", otherwise="warn")
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
@expect("is no test", "kind IS DISTINCT FROM 'test'", otherwise="drop")
def orders(rows):
    return rows

@transform
@expect("is not too large", "doubled < 1000", otherwise="dead_letter")
def doubled(orders):
    return orders.withColumn("doubled", F.col("amount") * 2)

@pipeline(to=to_table("t"))
@expect("is even", "doubled % 2 = 0", otherwise="drop")
def table(doubled):
    return doubled

@transform
def bare(orders):
    return orders.select("id", "amount")

@pipeline(to=to_table("u"))
@expect("is small", "amount < 10", otherwise="dead_letter")
def bare_table(bare):
    return bare

@pipeline(to=to_table("v"))
@expect("is huge", "amount > 1e9", otherwise="fail")
def failing(orders):
    return orders
"""

VALUES = [
    '{"id": "good", "amount": 4, "kind": "a"}',
    '{"id": "no kind", "amount": 4}',
    '{"id": "negative", "amount": -1, "kind": "a"}',
    '{"id": "unknown amount", "amount": null, "kind": "test"}',
    '{"id": "test", "amount": 4, "kind": "test"}',
    '{"id": "large", "amount": 2000, "kind": "a", "colour": "red"}',
    '{"id": "odd", "amount": 3.5, "kind": "a"}',
    '{"id": "text", "amount": "much", "kind": "a"}',
    "no json",
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=2)
        produce(broker.bootstrap, "orders", *VALUES, None, key="k")
        yield broker


def letters(broker: Broker, topic: str) -> dict[str, tuple[bytes | None, dict[str, str]]]:
    """By the offset in the source: the value, and all headers."""
    found = {}
    for record in records_of(broker.bootstrap, topic):
        headers = {name: (value or b"").decode() for name, value in record.headers}
        found[headers.get("klamm.offset", str(record.offset))] = (record.value, headers)
        assert record.key in (b"k", None)
    return found


def test_rows_go_where_their_rules_say(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    project = make_project(tmp_path, ORDERS, bootstrap=broker.bootstrap)
    rows, counts = run_once(project, "table", spark)
    assert sorted(row["id"] for row in rows) == ["good", "no kind"]
    assert rows[0]["_topic"] == "orders"
    assert "_value" not in rows[0].asDict()

    source = counts["orders"]
    assert (source.rows, source.undecodable, source.dead_letters) == (10, 2, 5)
    # A tombstone has no kind and no amount; what no JSON could be made of is gone before the rules.
    assert source.rules == {"has a kind": 2, "amount is positive": 3, "is no test": 1}
    assert (source.unknown_fields, source.unknown_field) == (0, None)
    assert (counts["doubled"].rows, counts["doubled"].dead_letters) == (4, 1)
    assert (counts["table"].rows, counts["table"].rules) == (3, {"is even": 1})

    sent = letters(broker, "shop.dead-letters")
    assert sorted(sent) == ["2", "3", "5", "7", "8", "9"]
    value, headers = sent["2"]
    assert value == VALUES[2].encode()
    timestamp = headers.pop("klamm.timestamp")
    assert int(timestamp) > 1_700_000_000_000
    assert headers == {
        "trace": "t1",
        "klamm.rule": "amount is positive",
        "klamm.error": "is not true: amount > 0",
        "klamm.pipeline": "table",
        "klamm.source": "orders",
        "klamm.topic": "orders",
        "klamm.partition": "0",
        "klamm.offset": "2",
        "klamm.content": "record",
    }
    assert sent["5"][1]["klamm.source"] == "doubled"
    assert sent["5"][0] == VALUES[5].encode()
    assert sent["7"][1]["klamm.rule"] == "decode"
    assert sent["7"][1]["klamm.error"] == "amount is 'much', which does not fit DOUBLE"
    assert "the value is not valid JSON" in sent["8"][1]["klamm.error"]
    assert sent["9"][0] is None, "a tombstone stays one"


def test_a_row_without_its_record_is_sent_as_json(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    toml = '[project]\nname = "shop"\ndead_letters = "bare.letters"\n'
    project = make_project(tmp_path, ORDERS, toml=toml, bootstrap=broker.bootstrap)
    rows, _ = run_once(project, "bare_table", spark)
    assert {row["id"] for row in rows} == {"good", "no kind", "odd"}
    rule = [one for one in letters(broker, "bare.letters").values() if one[1]["klamm.rule"] == "is small"]
    ((value, headers),) = rule
    assert value == b'{"id":"large","amount":2000.0}'
    assert headers["klamm.content"] == "row"
    assert "klamm.offset" not in headers


def test_a_letter_larger_than_the_broker_takes_says_where_its_record_is(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    large = b"no json" + b"." * 1_048_300  # fits in a batch, but not with the headers of a letter
    with klamm.Admin(broker.bootstrap) as admin:
        admin.create_topic("large", partitions=1)
    produce(broker.bootstrap, "large", b"small, no json", large, b'{"id": "good"}', key="k")
    toml = '[project]\nname = "shop"\ndead_letters = "large.letters"\n'
    text = ORDERS.replace('topic="orders"', 'topic="large"')
    project = make_project(tmp_path, text, toml=toml, bootstrap=broker.bootstrap)
    _, counts = run_once(project, "bare_table", spark)
    assert counts["orders"].undecodable == 2
    sent = letters(broker, "large.letters")
    assert sorted(sent) == ["0", "1", "2"]
    assert sent["0"][0] == b"small, no json" and sent["0"][1]["klamm.content"] == "record"
    value, headers = sent["1"]
    assert value is None
    assert (headers["klamm.content"], headers["klamm.topic"]) == ("coordinates", "large")
    assert "the value is not valid JSON" in headers["klamm.error"]
    assert "trace" not in headers


def test_a_rule_that_must_hold_stops_the_query(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    project = make_project(tmp_path, ORDERS, bootstrap=broker.bootstrap)
    with pytest.raises(PySparkException) as stopped:
        run_once(project, "failing", spark)
    assert explain(str(stopped.value), tmp_path).summary == (
        "the expectation 'is huge' of failing failed for the record orders-0 at offset 0: amount is 4.0, so "
        "it is not true: amount > 1e9. Correct what writes such records, or the condition, or let the "
        "expectation have otherwise='dead_letter'"
    )


def test_a_value_that_must_be_decoded_stops_the_query_with_its_field(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    text = ORDERS.replace("kind STRING", 'kind STRING", undecodable="fail').replace('="orders"', '="text"')
    with klamm.Admin(broker.bootstrap) as admin:
        admin.create_topic("text", partitions=1)
    produce(broker.bootstrap, "text", *VALUES[:8])
    with pytest.raises(PreviewFailed) as stopped:
        preview(make_project(tmp_path, text, bootstrap=broker.bootstrap), "orders", 20, spark)
    assert str(stopped.value) == (
        "orders cannot be previewed: a value of the source orders cannot be decoded for the record text-0 at "
        "offset 7: amount is 'much', which does not fit DOUBLE. Correct what writes such records, or the "
        "schema, or let the source have undecodable='dead_letter'"
    )


def test_a_preview_says_which_rules_were_broken_and_why(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    project = make_project(tmp_path, ORDERS, bootstrap=broker.bootstrap)
    shown = preview(project, "table", 100, spark)
    assert sorted(row[0] for row in shown.rows) == ["good", "no kind"]
    dead_letter = "a run sends them to the dead-letter topic"
    assert [str(each) for each in shown.rejections] == [
        f"orders: 2 rows could not be decoded ({dead_letter}); for example orders-0 at offset 7: amount is "
        "'much', which does not fit DOUBLE",
        "orders: 2 rows broke the expectation 'has a kind' (a run only counts them); for example orders-0 at "
        "offset 1: kind is null, so it is not true: kind IS NOT NULL",
        f"orders: 3 rows broke the expectation 'amount is positive' ({dead_letter}); for example orders-0 at "
        "offset 2: amount is -1.0, so it is not true: amount > 0",
        "orders: 1 row broke the expectation 'is no test' (a run drops them); for example orders-0 at offset "
        "4: kind is \"test\", so it is not true: kind IS DISTINCT FROM 'test'",
        f"doubled: 1 row broke the expectation 'is not too large' ({dead_letter}); for example orders-0 at "
        "offset 5: doubled is 4000.0, so it is not true: doubled < 1000",
        "table: 1 row broke the expectation 'is even' (a run drops them); for example orders-0 at offset 6: "
        "doubled is 7.0, so it is not true: doubled % 2 = 0",
    ]


@pytest.mark.long
def test_a_look_sends_nothing(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    toml = '[project]\nname = "shop"\ndead_letters = "no.letters"\n'
    project = make_project(tmp_path, ORDERS, toml=toml, bootstrap=broker.bootstrap)
    rows = build(project, "table", spark, streaming=False, last=100).collect()
    assert sorted(row["id"] for row in rows) == ["good", "no kind"]
    newest = build(project, "orders", spark, streaming=False, last=4).collect()
    assert [row["_offset"] for row in newest] == [6]
    with klamm.Admin(broker.bootstrap) as admin:
        assert "no.letters" not in admin.list_topics()


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("amonut > 0", "UNRESOLVED_COLUMN"),
        ("amount >", "PARSE_SYNTAX_ERROR"),
        ("amount", "is not a condition: its type is DOUBLE"),
    ],
)
def test_a_condition_that_cannot_be_looked_at_is_told_with_its_line(
    spark: SparkSession, broker: Broker, tmp_path: Path, condition: str, words: str
) -> None:
    text = ORDERS.replace('"amount > 0"', f'"{condition}"')
    project = make_project(tmp_path, text, bootstrap=broker.bootstrap)
    with pytest.raises(DefinitionError) as refused:
        build(project, "table", spark)
    assert words in str(refused.value)
    assert refused.value.place == (tmp_path / "pipelines/orders.py", 7)
