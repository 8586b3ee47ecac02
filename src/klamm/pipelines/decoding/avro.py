"""Avro values, decoded by fastavro in Python workers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from pyspark.sql.types import StructType

from klamm.pipelines.decoding.registry import fetch_schema
from klamm.pipelines.decoding.workers import ColumnFunction, NotDecodable, confluent_parts, struct_udf
from klamm.pipelines.definitions import Source
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.avro import AvroSchema, json_unions, read_avro_schema
from klamm.pipelines.schemas.resolving import schema_file


def decoder(source: Source, schema: StructType, project: Project) -> ColumnFunction:
    file = schema_file(project, source)
    assert file is not None, "an Avro source names its schema's file"
    avro_schema = read_avro_schema(file)
    options = source.options

    def make_reader() -> Callable[[bytes], dict[str, Any]]:
        return reader(avro_schema, options)

    udf: ColumnFunction = struct_udf(schema, make_reader)
    return udf


def reader(schema: AvroSchema, options: Mapping[str, str]) -> Callable[[bytes], dict[str, Any]]:
    """A function that decodes one value, with the options `framing` and `registry`."""
    main = fastavro.parse_schema(schema.reader)
    to_json = json_unions(schema.reader)
    is_framed = options.get("framing") == "confluent"
    writer_of = _writers(schema, options.get("registry"), main)

    def read(value: bytes) -> dict[str, Any]:
        writer = main
        if is_framed:
            schema_id, value = confluent_parts(value)
            writer = writer_of(schema_id)
        stream = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, writer, None if writer is main else main)
        except (EOFError, IndexError):
            raise NotDecodable("the value ends within the Avro record") from None
        if stream.tell() != len(value):
            raise NotDecodable(f"{len(value) - stream.tell()} bytes follow the Avro record")
        assert isinstance(row, dict)
        return to_json(row) if to_json is not None else row

    return read


def _writers(schema: AvroSchema, registry: str | None, main: Any) -> Callable[[int], Any]:
    """A function from an id to the writer schema of values.

    Writer schemas are in files or in the registry. If there are neither, all values count as written with the
    source's own schema. If there are, an unknown id is an error, since a value of another schema could be
    decoded to wrong columns.
    """
    known: dict[int, Any] = {
        number: fastavro.parse_schema(writer) for number, writer in schema.writers.items()
    }
    unknown: dict[int, NotDecodable] = {}

    def writer_of(schema_id: int) -> Any:
        if schema_id in known:
            return known[schema_id]
        if registry is None and not schema.writers:
            return main
        if registry is None:
            raise NotDecodable(
                f"it was written with schema {schema_id}, which is unknown: put it into "
                f"{schema.name}.{schema_id}.avsc, or name a registry"
            )
        if schema_id in unknown:
            raise unknown[schema_id]
        try:
            known[schema_id] = fetch_schema(registry, schema_id)
        except NotDecodable as error:
            unknown[schema_id] = error
            raise
        return known[schema_id]

    return writer_of
