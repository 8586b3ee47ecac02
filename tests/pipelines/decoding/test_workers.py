"""Avro and Protobuf values to structs, here and in Spark's workers, as other libraries have written them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type

from klamm.pipelines.decoding import avro, protobuf
from klamm.pipelines.decoding import registry as asking
from klamm.pipelines.decoding.workers import read_values
from klamm.pipelines.definitions import Source
from klamm.pipelines.errors import DecoderUnavailable, Place
from klamm.pipelines.schemas.avro import read_avro_schema
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.schemas.protobuf import message_class
from tests.pipelines.decoding.fake_registry import FakeRegistry
from tests.pipelines.decoding.test_plain import decoded
from tests.pipelines.messages import (
    ORDER_AVSC,
    ORDER_COLUMNS,
    ORDER_MESSAGE_COLUMNS,
    avro_value,
    confluent,
    order_descriptors,
)
from tests.pipelines.projects import make_project

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123000, UTC)
ORDER: dict[str, Any] = {
    "id": "a",
    "amount": 2.5,
    "at": MOMENT,
    "seen": MOMENT,
    "day": date(2026, 1, 31),
    "price": Decimal("12.34"),
    "state": "PAID",
    "before": None,
    "lines": [{"sku": "x", "n": 2}],
    "labels": {"k": "v"},
    "hash": b"1234",
    "trace": "6f1c8a52-8d0b-4c3a-9a0e-0123456789ab",
    "any": [1, 2],
    "number": 2**40,
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    asking.fetch_schema.cache_clear()
    with FakeRegistry() as registry:
        yield registry


def columns(ddl: str) -> pa.DataType:
    return to_arrow_type(parse_ddl(f"{ddl}, _error STRING"), timezone="UTC")


def avro_file(folder: Path, schema: dict[str, Any], name: str = "order.avsc") -> Path:
    (folder / name).write_text(json.dumps(schema))
    return folder / name


def test_avro_values_become_columns(tmp_path: Path) -> None:
    read = avro.reader(read_avro_schema(avro_file(tmp_path, ORDER_AVSC)), {})
    value = avro_value(ORDER_AVSC, ORDER)
    first, none, short, long = read_values(
        pa.array([value, None, value[:-3], value + b"!"]), read, columns(ORDER_COLUMNS)
    ).to_pylist()
    assert first.pop("_error") is None
    assert first == {**ORDER, "labels": [("k", "v")], "any": "[1, 2]"}
    assert none is None
    assert short["_error"] == "the value ends within the Avro record"
    assert long["_error"] == "1 bytes follow the Avro record"
    assert long["id"] is None


def order_schema(*more: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": "id", "type": "string"}, *more]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


OLD = order_schema()
NEW = order_schema({"name": "n", "type": "int", "default": 5})
FRAMED = {"framing": "confluent"}


def test_avro_with_confluents_framing_knows_older_writers(tmp_path: Path) -> None:
    avro_file(tmp_path, OLD, "order.3.avsc")
    avro_file(tmp_path, NEW, "order.4.avsc")
    read = avro.reader(read_avro_schema(avro_file(tmp_path, NEW)), FRAMED)
    values = [
        confluent(avro_value(OLD, {"id": "old"}), 3),
        confluent(avro_value(NEW, {"id": "new", "n": 7}), 4),
        confluent(avro_value(NEW, {"id": "stray", "n": 7}), 5),
        avro_value(NEW, {"id": "bare", "n": 7}),
        b"\0\0",
    ]
    found = read_values(pa.array(values), read, columns("id STRING, n INT")).to_pylist()
    assert [(row["id"], row["n"]) for row in found[:2]] == [("old", 5), ("new", 7)]
    assert "written with schema 5, which is unknown: put it into order.5.avsc" in found[2]["_error"]
    assert all("framing=confluent" in row["_error"] for row in found[3:])


def test_without_other_schemas_all_values_are_of_the_one(tmp_path: Path) -> None:
    read = avro.reader(read_avro_schema(avro_file(tmp_path, NEW)), FRAMED)
    assert read(confluent(avro_value(NEW, {"id": "a", "n": 7}), 17)) == {"id": "a", "n": 7}


def test_a_registry_knows_what_values_were_written_with(tmp_path: Path, registry: FakeRegistry) -> None:
    item = {
        "type": "record",
        "name": "Item",
        "namespace": "shop",
        "fields": [{"name": "sku", "type": "string"}],
    }
    registry.answers["/subjects/item%2Fvalue/versions/2"] = {"schema": json.dumps(item)}
    registry.answers["/schemas/ids/3"] = {"schema": json.dumps(OLD)}
    registry.answers["/schemas/ids/4"] = {
        "schema": json.dumps(order_schema({"name": "item", "type": "shop.Item"})),
        "references": [{"name": "shop.Item", "subject": "item/value", "version": 2}],
    }
    registry.answers["/schemas/ids/5"] = {"schema": "message Order {}", "schemaType": "PROTOBUF"}
    whole = order_schema({"name": "item", "type": item}, {"name": "n", "type": "int", "default": 5})
    options = {**FRAMED, "registry": registry.url.replace("//", "//user:pass%40word@")}
    read = avro.reader(read_avro_schema(avro_file(tmp_path, NEW)), options)
    values = [
        confluent(avro_value(OLD, {"id": "old"}), 3),
        confluent(avro_value(OLD, {"id": "older"}), 3),
        confluent(avro_value(whole, {"id": "nested", "item": {"sku": "x"}, "n": 1})[:-1], 4),
        confluent(b"", 5),
        confluent(b"", 99),
        confluent(b"", 99),
    ]
    found = read_values(pa.array(values), read, columns("id STRING, n INT")).to_pylist()
    assert [(row["id"], row["n"]) for row in found[:3]] == [("old", 5), ("older", 5), ("nested", 5)]
    assert "which is not Avro but PROTOBUF" in found[3]["_error"]
    assert all("schema 99, which the registry does not have" in row["_error"] for row in found[4:])
    assert registry.asked.count("/schemas/ids/3") == registry.asked.count("/schemas/ids/99") == 1
    assert set(registry.credentials) == {"Basic " + base64.b64encode(b"user:pass@word").decode()}


def test_a_registry_that_does_not_answer_is_no_fault_of_the_values(
    tmp_path: Path, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PAUSES_S", (0.01, 0.01))
    read = avro.reader(
        read_avro_schema(avro_file(tmp_path, NEW)), {**FRAMED, "registry": registry.url + "/sub/"}
    )
    values = pa.array([confluent(b"", 7)])
    registry.failures["/sub/schemas/ids/7"] = [500, 503, 502]
    with pytest.raises(DecoderUnavailable, match=r"has not answered http.*/sub/schemas/ids/7: 502"):
        read_values(values, read, columns("id STRING, n INT"))
    registry.failures["/sub/schemas/ids/7"] = [401]
    with pytest.raises(DecoderUnavailable, match="401"):
        read_values(values, read, columns("id STRING, n INT"))
    registry.answers["/sub/schemas/ids/7"] = {"message": "another server knows no such path"}
    for codes in ([], [404]):
        registry.failures["/sub/schemas/ids/7"] = codes
        with pytest.raises(DecoderUnavailable, match=r"404 Not Found|the answer is not a schema"):
            read_values(values, read, columns("id STRING, n INT"))
    registry.cut_off_bytes = 10
    with pytest.raises(DecoderUnavailable, match="IncompleteRead"):
        read_values(values, read, columns("id STRING, n INT"))
    registry.cut_off_bytes = 0
    registry.failures["/sub/schemas/ids/7"] = [503]
    registry.answers["/sub/schemas/ids/7"] = {"schema": json.dumps(OLD)}
    good = pa.array([confluent(avro_value(OLD, {"id": "late"}), 7)])
    assert read_values(good, read, columns("id STRING, n INT")).to_pylist()[0]["id"] == "late"


def test_protobuf_messages_become_columns() -> None:
    descriptors = order_descriptors()
    order = message_class(descriptors, "shop.Order")()
    order.id, order.amount, order.big, order.paid, order.raw, order.number = (
        "a",
        2.5,
        2**64 - 1,
        True,
        b"\0",
        -3,
    )
    order.at.FromDatetime(MOMENT)
    order.discount.value = 0.5
    order.first.sku = "x"
    order.lines.add(sku="y", n=2)
    order.state = 1
    order.labels["k"] = 9
    strange = message_class(descriptors, "shop.Order")(state=77, note="")
    read = protobuf.reader(descriptors, "shop.Order", False)
    values = pa.array([order.SerializeToString(), b"", strange.SerializeToString(), b"\xff\xff", None])
    first, empty, odd, broken, none = read_values(values, read, columns(ORDER_MESSAGE_COLUMNS)).to_pylist()
    assert first == {
        "id": "a",
        "amount": 2.5,
        "big": Decimal(2**64 - 1),
        "paid": True,
        "raw": b"\0",
        "number": -3,
        "note": None,
        "at": MOMENT,
        "discount": 0.5,
        "first": {"sku": "x", "n": 0},
        "lines": [{"sku": "y", "n": 2}],
        "state": "PAID",
        "labels": [("k", 9)],
        "_error": None,
    }
    assert (empty["id"], empty["at"], empty["first"], empty["discount"]) == ("", None, None, None)
    assert (odd["state"], odd["note"]) == ("77", "")
    assert broken["_error"] == "the value is not a shop.Order"
    assert none is None


@pytest.mark.parametrize("indexes", [b"\0", b"\x02\x00", b"\x04\x02\x00"])
def test_protobuf_with_confluents_framing(indexes: bytes) -> None:
    descriptors = order_descriptors()
    value = message_class(descriptors, "shop.Line")(sku="x", n=3).SerializeToString()
    read = protobuf.reader(descriptors, "shop.Line", True)
    framed = confluent(indexes + value)
    found = read_values(pa.array([framed, framed[:5], value]), read, columns("sku STRING, n INT")).to_pylist()
    assert found[0] == {"sku": "x", "n": 3, "_error": None}
    assert "ends within the indexes" in found[1]["_error"]
    assert "framing=confluent" in found[2]["_error"]


def test_a_value_that_no_column_holds_is_one_error_among_others() -> None:
    def read(value: bytes) -> dict[str, Any]:
        return {"n": int(value)}

    found = read_values(pa.array([b"1", b"99999999999", b"x"]), read, columns("n INT")).to_pylist()
    assert found[0] == {"n": 1, "_error": None}
    assert "does not fit its columns" in found[1]["_error"]
    assert "ValueError" in found[2]["_error"]


def test_workers_of_spark_decode(spark: SparkSession, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.schemas.mkdir()
    avro_file(project.schemas, ORDER_AVSC)
    (project.schemas / "shop.desc").write_bytes(order_descriptors())
    place = Place(tmp_path, 1)
    avro_source = Source("a", len, place, format="avro", schema="order.avsc")
    values = [avro_value(ORDER_AVSC, ORDER), b"\xff", None]
    good, bad, none = decoded(spark, project, avro_source, values)
    assert (good["id"], good["lines"][0]["sku"], good["labels"], good["_error"]) == (
        "a",
        "x",
        {"k": "v"},
        None,
    )
    assert good["price"] == Decimal("12.34")
    assert (bad["id"], bad["_error"] is not None, bad["_value"]) == (None, True, b"\xff")
    assert (none["id"], none["_error"]) == (None, None)

    options = {"message": "shop.Line"}
    proto_source = Source("p", len, place, format="protobuf", schema="shop.desc", options=options)
    line = message_class(order_descriptors(), "shop.Line")(sku="x", n=3).SerializeToString()
    rows = decoded(spark, project, proto_source, [line, b"\xff", None])
    assert [(row["sku"], row["n"]) for row in rows] == [("x", 3), (None, None), (None, None)]
    assert [row["_error"] for row in rows] == [None, "the value is not a shop.Line", None]
