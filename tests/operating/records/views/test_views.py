"""What keys and values are shown as, and what hostile ones cannot do."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.results import Record
from klamm.operating.errors import CannotDo
from klamm.operating.records.full import full_record
from klamm.operating.records.rows import row_maker
from klamm.operating.records.views.avro import AvroSchema
from klamm.operating.records.views.errors import Undecodable
from klamm.operating.records.views.protobuf import ProtobufSchema, decode_raw, message_names
from klamm.operating.records.views.text import hex_rows, one_line, preview, visible
from klamm.operating.records.views.trees import MOST_NODES, Node, tree_of
from klamm.operating.records.views.view import Format, Kind, document_of, view

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "sizes", "type": {"type": "array", "items": "double"}},
        {"name": "notes", "type": {"type": "map", "values": ["string", "int"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "paid", "type": "boolean"},
        {"name": "weight", "type": "float"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
VALUE: dict[str, Any] = {
    "id": -7,
    "city": "Zürich",
    "at": 1_767_261_600_123,
    "day": 20_454,
    "price": b"\x30\x39",
    "state": "PAID",
    "sizes": [0.5, -2.0],
    "notes": {"a": "x", "b": 5},
    "hash": b"\x00\xff",
    "paid": True,
    "weight": 1.5,
    "next": None,
}


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def plain(schema: Any) -> Any:
    """The schema without logical types, so that fastavro takes plain values."""
    if isinstance(schema, dict):
        return {name: plain(value) for name, value in schema.items() if name != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


ENCODED = avro(plain(ORDER), VALUE)
SCHEMA = AvroSchema(json.dumps(ORDER))


def names(node: Node) -> list[str]:
    return [each.name for each in node.children]


# ---- formats


def test_json_text_and_binary() -> None:
    shown = view(b'{"city": "Bern", "items": [{"n": 1}, null, true]}')
    assert shown.kind is Kind.JSON and shown.tree is not None and names(shown.tree) == ["city", "items"]
    city, items = shown.tree.children
    assert (city.kind, city.text, city.path) == ("text", '"Bern"', "city")
    assert (items.text, items.children[0].children[0].path) == ("3 elements", "items[0].n")
    assert [each.kind for each in items.children] == ["object", "word", "word"]
    assert view(b"plain words").kind is Kind.TEXT and view(b"\xff\x00\x01").kind is Kind.BINARY
    assert view(None).kind is Kind.NULL and view(b"").kind is Kind.EMPTY
    assert view(b'{"a": 1}', Format.TEXT).kind is Kind.TEXT
    assert view(b"a\xffb", Format.TEXT).text == "a\\xffb"
    assert view(b"abc", Format.HEX).hex[0].hex == "61 62 63"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"a": }', "it is not JSON: expecting value, line 1, column 7"),
        (b"{\xff}", "it is not JSON: byte 1 is not UTF-8"),
        (b"[" * 200_000, "it is not JSON: it is nested too deep"),
        (b"1" * 5_000, "it is not JSON that can be read"),
    ],
)
def test_what_is_not_json_says_why(data: bytes, error: str) -> None:
    assert error in view(data, Format.JSON).error
    assert view(data).error == ""


def test_avro_with_its_schema() -> None:
    for data, note in ((ENCODED, ()), (b"\0\0\0\0\x2a" + ENCODED, ("written with schema 42 of a registry",))):
        shown = view(data, Format.AVRO, SCHEMA)
        assert (shown.kind, shown.error, shown.notes) == (Kind.AVRO, "", note)
        found = json.loads(shown.text)
        assert found["id"] == -7 and found["city"] == "Zürich" and found["price"] == "123.45"
        assert found["at"] == "2026-01-01T10:00:00.123000+00:00" and found["day"] == "2026-01-01"
        assert (
            found["state"] == "PAID"
            and found["sizes"] == [0.5, -2.0]
            and found["notes"] == {"a": "x", "b": 5}
        )
        assert found["paid"] is True and found["weight"] == 1.5 and found["next"] is None
        assert document_of(data, Format.AVRO, SCHEMA)["city"] == "Zürich"


def test_avro_that_does_not_fit() -> None:
    assert "read with their schema" in view(ENCODED, Format.AVRO).error
    assert "ends within" in view(ENCODED[:8], Format.AVRO, SCHEMA).error
    assert "1 bytes follow the Avro value" in view(ENCODED + b"x", Format.AVRO, SCHEMA).error
    assert (
        "written with schema 42 of a registry, and the value ends within id"
        in view(b"\0\0\0\0\x2a\xff", Format.AVRO, SCHEMA).error
    )
    assert "schema 42 of a registry" in view(b"\0\0\0\0\x2a\xff").notes[0]
    for text in ("", "{", '{"type": "record"}', '"nonsense"', "[" * 50_000):
        with pytest.raises(CannotDo, match="this is not an Avro schema"):
            AvroSchema(text)


def test_hostile_avro() -> None:
    """What ends a process that decodes with fastavro, or keeps it busy for ever."""
    nested = AvroSchema(
        '{"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}'
    )
    with pytest.raises(Undecodable, match="more than 60 levels"):
        nested.decode(b"\x02" * 1_000_000)
    nulls = AvroSchema('{"type": "array", "items": "null"}')
    with pytest.raises(Undecodable, match="more than 200,000 values"):
        nulls.decode(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")
    with pytest.raises(Undecodable, match="ends within"):
        AvroSchema('"bytes"').decode(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")


@given(st.binary(max_size=80))
def test_any_bytes_are_avro_or_not(data: bytes) -> None:
    shown = view(data, Format.AVRO, SCHEMA)
    assert shown.kind in Kind
    try:
        document = SCHEMA.decode(data)
    except Undecodable:
        return
    assert set(document) == set(VALUE)


NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(
    NUMBERS, st.none() | st.text(), st.lists(st.floats(allow_nan=False)), st.dictionaries(st.text(), NUMBERS)
)
def test_avro_as_fastavro_writes_it(number: int, text: str | None, sizes: list[float], notes: Any) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "text", "type": ["null", "string"]},
            {"name": "sizes", "type": {"type": "array", "items": "double"}},
            {"name": "notes", "type": {"type": "map", "values": "long"}},
        ],
    }
    value = {"number": number, "text": text, "sizes": sizes, "notes": notes}
    assert AvroSchema(json.dumps(schema)).decode(avro(schema, value)) == value


# ---- Protobuf


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="city", number=2, type=9, label=1)
    message.field.add(name="items", number=3, type=11, label=3, type_name=".shop.Order.Item")
    message.field.add(name="price", number=4, type=1, label=1)
    item = message.nested_type.add(name="Item")
    item.field.add(name="sku", number=1, type=9, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def order() -> bytes:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message: Any = made(id=7, city="Bern", price=2.5)
    message.items.add(sku="a")
    message.items.add(sku="b")
    return bytes(message.SerializeToString())


def test_protobuf_with_its_message() -> None:
    assert message_names(descriptors()) == ["shop.Order", "shop.Order.Item"]
    schema = ProtobufSchema(descriptors(), "shop.Order")
    for data in (order(), b"\0\0\0\0\x05\0" + order(), b"\0\0\0\0\x05\x02\0" + order()):
        shown = view(data, Format.PROTOBUF, schema)
        assert shown.kind is Kind.PROTOBUF and not shown.error
        assert json.loads(shown.text) == {
            "id": "7",
            "city": "Bern",
            "items": [{"sku": "a"}, {"sku": "b"}],
            "price": 2.5,
        }
    assert "it is not a shop.Order" in view(b"\x0a\xff", Format.PROTOBUF, schema).error
    with pytest.raises(CannotDo, match=r"no message Nothing .* shop\.Order, shop\.Order\.Item"):
        ProtobufSchema(descriptors(), "Nothing")
    for data in (b"", b"nonsense", b"\xff\xff"):
        with pytest.raises(CannotDo, match="protoc --include_imports"):
            message_names(data)


def test_protobuf_without_a_schema() -> None:
    shown = view(order(), Format.PROTOBUF)
    assert shown.kind is Kind.PROTOBUF and "without a schema" in shown.notes[0]
    assert json.loads(shown.text) == {"1": 7, "2": "Bern", "3": [{"1": "a"}, {"1": "b"}], "4": 2.5}
    assert view(b"\x08\x96\x01\xff").notes == ()
    assert "could be a Protobuf message" in view(b"\x08\x96\x01\x12\x02\xff\xfe").notes[0]
    deep = b""
    for _ in range(100):
        deep = b"\x0a" + bytes([len(deep)]) + deep if len(deep) < 120 else deep
    assert decode_raw(deep)
    with pytest.raises(Undecodable, match="ends within field 1"):
        decode_raw(b"\x0a\xff\xff\xff\xff\x0f")


@given(st.binary(max_size=60))
def test_any_bytes_are_protobuf_or_not(data: bytes) -> None:
    assert view(data, Format.PROTOBUF).kind in Kind
    assert view(b"\0\0\0\0\x01" + data).kind in Kind


# ---- text


def test_hidden_characters_are_shown() -> None:
    assert (
        visible("a\x1b[31mb\x00\u202ec\u200bd\ud800\x85")
        == "a‹ESC›[31mb‹NUL›‹U+202E›c‹U+200B›d‹U+D800›‹U+0085›"
    )
    assert visible("a\tb\nc 👩‍👩‍👧") == "a\tb\nc 👩‍👩‍👧"
    assert one_line("a\tb\nc\r") == "a→b↵c‹CR›"


def test_previews() -> None:
    assert preview(None) is None
    made = preview(b"<script>" + b"x" * 10_000_000)
    assert made is not None and made.size == 10_000_008 and made.is_cut and len(made.text) == 240
    cut = preview("ü".encode() * 1_000)
    assert cut is not None and cut.text == "ü" * 240 and not cut.is_binary
    assert preview("x€".encode() * 400) == ("x€" * 120, 1_600, False, True)
    binary = preview(bytes(range(256)))
    assert binary is not None and binary.is_binary and binary.text.startswith("00 01 02")
    assert preview(b"") == ("", 0, False, False)


@given(st.binary(max_size=2_000))
def test_any_bytes_have_a_preview_of_one_line(data: bytes) -> None:
    made = preview(data)
    assert made is not None and len(made.text.splitlines()) <= 1 and made.size == len(data)
    made.text.encode()


@given(st.binary(max_size=100), st.integers(0, 6))
def test_hexadecimal(data: bytes, start: int) -> None:
    rows = hex_rows(data, start * 16)
    assert bytes.fromhex("".join(row.hex for row in rows)) == data[start * 16 :]


# ---- bounds


def count(node: Node) -> int:
    return 1 + sum(count(each) for each in node.children)


def test_large_values_stay_small_on_a_page() -> None:
    wide = tree_of(list(range(100_000)))
    assert count(wide) <= MOST_NODES + 1 and wide.children[-1].kind == "more"
    assert wide.children[-1].text == "97,001 more are in the raw view"
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    assert count(tree_of(deep)) < 70
    long = view(b'"' + b"x" * 1_500_000 + b'"')
    assert len(long.text) < 250_000 and long.tree is not None and "more characters" in long.tree.text
    assert "only the beginning of 1,500,002 bytes is shown" in long.notes[0]
    huge = view(b"{" + b" " * 3_000_000 + b"}")
    assert huge.kind is Kind.TEXT and len(huge.hex) <= 1_024
    assert json.dumps(huge.as_json())


def test_a_dead_letter_record_says_why_and_where_it_came_from() -> None:
    headers = (
        ("klamm.rule", b"positive amount"),
        ("klamm.error", b"amount is -5 \x1b"),
        ("klamm.pipeline", b"billing"),
        ("klamm.source", b"orders"),
        ("klamm.topic", b"orders"),
        ("klamm.partition", b"2"),
        ("klamm.offset", b"17"),
        ("binary", b"\xff\x00"),
        ("null", None),
    )
    record = Record("dead", 0, 3, 0, None, struct.pack(">d", -5.0), headers)
    full = full_record(record)
    refusal = full.refusal
    assert refusal is not None and (refusal.topic, refusal.partition, refusal.offset) == ("orders", 2, 17)
    assert (refusal.rule, refusal.error, refusal.pipeline) == (
        "positive amount",
        "amount is -5 ‹ESC›",
        "billing",
    )
    assert full.headers[-2:] == (("binary", "ff 00", True), ("null", None, False))
    assert row_maker()(record).reason == "positive amount: amount is -5 ‹ESC›"
    assert full_record(Record("t", 0, 0, 0, b"k", b"v", (("klamm.rule", b"x"),))).refusal is None
    assert json.dumps(full.as_json())


def test_rows_of_decoded_values() -> None:
    decode = row_maker(lambda data: document_of(data, Format.AVRO, SCHEMA))
    row = decode(Record("t", 0, 0, 0, b"k", ENCODED, ()))
    assert row.value is not None and row.value.text.startswith('{"id": -7, "city": "Zürich"')
    assert row.value.size == len(ENCODED)
    assert decode(Record("t", 0, 0, 0, b"k", b"\xff\xff", ())).value == preview(b"\xff\xff")
