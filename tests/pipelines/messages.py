"""Avro and Protobuf samples for tests: schemas, and values written with them by other libraries than ours."""

from __future__ import annotations

import io
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

ORDER_AVSC: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "seen", "default": None,
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "any", "type": ["null", "string", "int", {"type": "array", "items": "int"}]},
        {"name": "number", "type": ["int", "long"]},
    ],
}  # fmt: skip

ORDER_COLUMNS = (
    "id STRING, amount DOUBLE, at TIMESTAMP, seen TIMESTAMP, day DATE, price DECIMAL(10,2), state STRING, "
    "before STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>, labels MAP<STRING, STRING>, hash BINARY, "
    "trace STRING, any STRING, number BIGINT"
)


def avro_value(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def confluent(value: bytes, schema_id: int = 7) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def order_descriptors() -> bytes:
    """A descriptor set as `protoc --include_imports` writes it, with every kind of field."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    line.field.add(name="n", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    plain = [("id", kinds.TYPE_STRING), ("amount", kinds.TYPE_DOUBLE), ("big", kinds.TYPE_UINT64)]
    plain += [("paid", kinds.TYPE_BOOL), ("raw", kinds.TYPE_BYTES), ("number", kinds.TYPE_SINT64)]
    for number, (name, kind) in enumerate(plain, 1):
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note", number=10, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL, oneof_index=0,
        proto3_optional=True,
    )  # fmt: skip
    messages = [
        ("at", ".google.protobuf.Timestamp"),
        ("discount", ".google.protobuf.DoubleValue"),
        ("first", ".shop.Line"),
    ]
    for number, (name, type_name) in enumerate(messages, 11):
        order.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=type_name, label=kinds.LABEL_OPTIONAL
        )
    order.field.add(
        name="lines", number=15, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=kinds.LABEL_REPEATED
    )
    order.field.add(
        name="state", number=16, type=kinds.TYPE_ENUM, type_name=".shop.State", label=kinds.LABEL_OPTIONAL
    )
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="labels", number=17, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.LabelsEntry",
        label=kinds.LABEL_REPEATED,
    )  # fmt: skip
    node = file.message_type.add(name="Tree")
    node.field.add(
        name="child", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Tree", label=kinds.LABEL_OPTIONAL
    )
    whole = descriptor_pb2.FileDescriptorSet()
    for imported in (timestamp_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(whole.file.add())
    whole.file.append(file)
    return whole.SerializeToString()


ORDER_MESSAGE_COLUMNS = (
    "id STRING, amount DOUBLE, big DECIMAL(20,0), paid BOOLEAN, raw BINARY, number BIGINT, note STRING, "
    "at TIMESTAMP, discount DOUBLE, first STRUCT<sku: STRING, n: INT>, "
    "lines ARRAY<STRUCT<sku: STRING, n: INT>>, state STRING, labels MAP<STRING, BIGINT>"
)
