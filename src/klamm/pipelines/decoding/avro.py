"""Avro values, decoded by fastavro in Python workers."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fastavro
from pyspark.sql.types import StructType

from klamm.pipelines.decoding.workers import ColumnFunction, NotDecodable, confluent_parts, struct_udf
from klamm.pipelines.definitions import Source
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.avro import AvroSchema, json_unions, read_avro_schema
from klamm.pipelines.schemas.resolving import schema_file


def decoder(source: Source, schema: StructType, project: Project) -> ColumnFunction:
    file = schema_file(project, source)
    assert file is not None, "an Avro source names its schema's file"
    avro_schema = read_avro_schema(file)
    is_framed = source.options.get("framing") == "confluent"

    def make_reader() -> Callable[[bytes], dict[str, Any]]:
        return reader(avro_schema, is_framed)

    udf: ColumnFunction = struct_udf(schema, make_reader)
    return udf


def reader(schema: AvroSchema, is_framed: bool) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads one value."""
    main = fastavro.parse_schema(schema.reader)
    writers = {number: fastavro.parse_schema(writer) for number, writer in schema.writers.items()}
    to_json = json_unions(schema.reader)

    def read(value: bytes) -> dict[str, Any]:
        writer = main
        if is_framed:
            schema_id, value = confluent_parts(value)
            writer = writers.get(schema_id, main)
        stream = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, writer, None if writer is main else main)
        except (EOFError, IndexError):
            raise NotDecodable("the value ends before the Avro record does") from None
        if stream.tell() != len(value):
            raise NotDecodable(f"{len(value) - stream.tell()} bytes follow the Avro record")
        assert isinstance(row, dict)
        return to_json(row) if to_json is not None else row

    return read
