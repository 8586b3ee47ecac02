from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import klamm
from klamm.pipelines.definitions import Source
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import SamplingFailed, SchemaError
from klamm.pipelines.project import Project
from klamm.pipelines.schemas import ensure_schema, schema_of, update
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.schemas.files import read_schema, schema_text, write_schema
from klamm.testing import Broker
from tests.pipelines.messages import ORDER_AVSC, ORDER_COLUMNS, ORDER_MESSAGE_COLUMNS, order_descriptors
from tests.pipelines.projects import make_project


def source_of(project: Project, **changes: object) -> Source:
    (source,) = load_definitions(project).sources.values()
    return replace(source, **changes)  # type: ignore[arg-type]


def project_with(root: Path, arguments: str, bootstrap: str = "localhost:1") -> Project:
    text = f"\n@source(topic='orders', {arguments})\ndef orders(rows):\n    return rows\n"
    return make_project(root, text, bootstrap=bootstrap)


@pytest.mark.parametrize(
    ("arguments", "ddl"),
    [
        ("schema='id STRING, n INT'", "id STRING, n INT"),
        ("format='text'", "value STRING"),
        ("format='binary'", "value BINARY"),
        ("schema='orders.json'", "id STRING, tags ARRAY<INT>"),
        ("schema='infer'", "id STRING, tags ARRAY<INT>"),
        ("format='avro', schema='order.avsc'", ORDER_COLUMNS),
        ("format='protobuf', schema='shop.desc', message='shop.Order'", ORDER_MESSAGE_COLUMNS),
    ],
)
def test_a_source_says_its_columns(tmp_path: Path, arguments: str, ddl: str) -> None:
    project = project_with(tmp_path, arguments)
    write_schema(project.schemas / "orders.json", parse_ddl("id STRING, tags ARRAY<INT>"))
    (project.schemas / "order.avsc").write_text(json.dumps(ORDER_AVSC))
    (project.schemas / "shop.desc").write_bytes(order_descriptors())
    assert schema_of(project, source_of(project)) == parse_ddl(ddl)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("schema='id STRNG'", "Did you mean STRING?"),
        ("schema='_key STRING'", "which is a reserved name"),
        ("schema='other.json'", "other.json cannot be read: No such file"),
        ("schema='bad.json'", "is not a valid schema"),
        ("schema='infer'", "has not been inferred yet"),
        ("format='avro', schema='none.avsc'", "none.avsc cannot be read"),
        ("format='avro', schema='bad.avsc'", "is not a valid Avro schema"),
        ("format='avro', schema='loop.avsc'", "the Avro record Loop contains itself"),
        ("format='avro', schema='plain.avsc'", "is not a record"),
        ("format='protobuf', schema='none.desc', message='x'", "protoc --include_imports"),
        ("format='protobuf', schema='bad.desc', message='x'", "descriptor set is not complete"),
        ("format='protobuf', schema='shop.desc', message='Order'", "Did you mean shop.Order?"),
        ("format='protobuf', schema='shop.desc', message='shop.Tree'", "contains itself"),
    ],
)
def test_what_is_wrong_is_told_with_the_line_of_the_source(
    tmp_path: Path, arguments: str, words: str
) -> None:
    project = project_with(tmp_path, arguments)
    project.schemas.mkdir()
    loop = {"type": "record", "name": "Loop", "fields": [{"name": "next", "type": ["null", "Loop"]}]}
    texts = {"bad.json": "{}", "bad.avsc": "{}", "loop.avsc": json.dumps(loop), "plain.avsc": '"string"'}
    for name, text in texts.items():
        (project.schemas / name).write_text(text)
    (project.schemas / "bad.desc").write_bytes(b"\xff\xff\xff")
    (project.schemas / "shop.desc").write_bytes(order_descriptors())
    with pytest.raises(SchemaError) as refused:
        schema_of(project, source_of(project))
    assert words in str(refused.value)
    assert refused.value.place == (tmp_path / "pipelines/orders.py", 3)


def test_a_written_schema_is_the_same_text_each_time(tmp_path: Path) -> None:
    schema = parse_ddl("b STRING COMMENT 'ü', a STRUCT<x: ARRAY<INT>, y: MAP<STRING, DECIMAL(5,2)>> NOT NULL")
    text = schema_text(schema)
    assert text.index('"b"') < text.index('"a"')
    write_schema(tmp_path / "deep/s.json", schema)
    assert (tmp_path / "deep/s.json").read_text() == text
    assert read_schema(tmp_path / "deep/s.json") == schema
    assert schema_text(read_schema(tmp_path / "deep/s.json")) == text


def produce(bootstrap: str, *values: str | None) -> None:
    with klamm.Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send("orders", value.encode() if value is not None else None, partition=number % 2)


def test_a_schema_is_inferred_once_and_then_updated_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker() as broker:
        project = project_with(tmp_path, "schema='infer'", broker.bootstrap)
        source = source_of(project)
        with pytest.raises(SamplingFailed, match="orders does not exist"):
            ensure_schema(project, source)
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=2)
        with pytest.raises(SchemaError, match="there are no records"):
            ensure_schema(project, source)
        produce(broker.bootstrap, "no json", None, "[1]")
        with pytest.raises(SchemaError, match="none of the last 3 records is an object"):
            ensure_schema(project, source)

        produce(
            broker.bootstrap, '{"id": "a", "n": 1, "at": "2026-01-31T12:00:00Z"}', '{"id": "b", "n": null}'
        )
        first = parse_ddl("id STRING, n BIGINT, at TIMESTAMP")
        assert ensure_schema(project, source) == first
        assert read_schema(project.schemas / "orders.json") == first
        told = [record.getMessage() for record in caplog.records if "does not fit" in record.getMessage()]
        assert told[0].startswith(
            "orders-0 at offset 0 does not fit the inferred schema of orders: the value is not"
        )

        produce(broker.bootstrap, '{"id": "c", "n": 2.5, "colour": {"r": 1}}')
        assert ensure_schema(project, source) == first, "what is written down counts"
        found = update(project, source)
        assert found.added == ("colour STRUCT<R:BIGINT>",)
        assert found.differing == ("n is BIGINT in the schema, but DOUBLE in the records",)
        assert found.written
        assert schema_of(project, source) == parse_ddl(
            "id STRING, n BIGINT, at TIMESTAMP, colour STRUCT<r: BIGINT>"
        )
        assert not update(project, source).written

        said = update(project, replace(source, schema="id STRING"))
        assert (said.written, said.file) == (False, None)
        assert "n DOUBLE" in said.added


def test_columns_of_csv_are_counted(tmp_path: Path) -> None:
    with Broker() as broker:
        project = project_with(tmp_path, "format='csv', schema='infer', sep=';'", broker.bootstrap)
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=2)
        produce(broker.bootstrap, "a;b;c", "d;e;f", "g")
        assert ensure_schema(project, source_of(project)) == parse_ddl("_c0 STRING, _c1 STRING, _c2 STRING")


def test_no_broker_is_told(tmp_path: Path) -> None:
    project = project_with(tmp_path, "schema='infer'", "127.0.0.1:1")
    project = replace(project, kafka={"default.api.timeout.ms": "300"})
    with pytest.raises(SamplingFailed, match="orders cannot be read"):
        ensure_schema(project, source_of(project))
