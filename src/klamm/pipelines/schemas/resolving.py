"""Finds the schema of a source: in its decorator, in a file, or inferred from records and written to a file.

Once a schema was inferred, its file counts. A field of newer records that the schema does not have is
ignored, and reported by lint and in the pipeline's status. `update` adds such fields at the end, and never
changes the type of an existing field, since tables have it already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import types

from klamm.client.results import Record
from klamm.pipelines.definitions import CARRIED, INFER, Source
from klamm.pipelines.errors import SchemaError
from klamm.pipelines.line_formats import LINE_FORMATS, check_schema, line_format, natural_schema
from klamm.pipelines.project import Project
from klamm.pipelines.sampling import sample
from klamm.pipelines.schemas.avro import read_avro_schema
from klamm.pipelines.schemas.ddl import parse_ddl
from klamm.pipelines.schemas.explaining import json_explainer
from klamm.pipelines.schemas.files import read_schema, write_schema
from klamm.pipelines.schemas.inference import compare, infer
from klamm.pipelines.schemas.protobuf import columns_of, message_class, read_descriptors

logger = logging.getLogger(__name__)

SHOWN_MISFITS = 3
"""How many records that do not fit an inferred schema are named."""

ERROR_COLUMN = "_error"
RESERVED = frozenset({*CARRIED, ERROR_COLUMN})


def schema_file(project: Project, source: Source) -> Path | None:
    """The file of a source's schema; None if the schema is in the decorator, or there is none."""
    if source.schema == INFER:
        return project.schemas / f"{source.name}.json"
    if source.schema and source.schema.endswith((".json", ".avsc", ".desc")):
        return project.schemas / source.schema
    return None


def schema_of(project: Project, source: Source) -> types.StructType:
    """The columns that a source decodes to. Raises SchemaError with the place of the source."""
    try:
        schema = _schema_of(project, source)
    except SchemaError as error:
        raise _placed(error, source) from None
    for field in schema:
        if field.name.lower() in RESERVED:
            raise SchemaError(
                f"{source.name} has a column {field.name}, which is a reserved name",
                advice=f"Rename it: {', '.join(sorted(RESERVED))} are reserved",
                place=source.place,
            )
    return schema


def ensure_schema(project: Project, source: Source) -> types.StructType:
    """As `schema_of`, but infers the schema and writes its file if that is missing."""
    file = schema_file(project, source)
    if source.schema == INFER and file is not None and not file.exists():
        write_schema(file, _inferred(project, source))
    return schema_of(project, source)


@dataclass(frozen=True)
class SchemaUpdate:
    """The difference between a source's schema and its newest records.

    `added` are new fields with their types, `differing` sentences about fields that are not changed.
    `written` is True if the file was changed; it is not if the schema is in the decorator.
    """

    source: str
    file: Path | None
    added: tuple[str, ...]
    differing: tuple[str, ...]
    written: bool


def update(project: Project, source: Source) -> SchemaUpdate:
    """Add fields of the newest records to the schema file."""
    if source.format != "json":
        raise SchemaError(
            f"the schema of {source.name} cannot be updated from records, as its format is {source.format}",
            advice="Change its schema by hand",
            place=source.place,
        )
    file = schema_file(project, source)
    if file is not None and not file.exists() and source.schema == INFER:
        schema = ensure_schema(project, source)
        return SchemaUpdate(source.name, file, tuple(field.simpleString() for field in schema), (), True)
    known = schema_of(project, source)
    found = compare(known, _inferred(project, source))
    written = bool(found.added) and file is not None
    if written and file is not None:
        write_schema(file, found.merged)
    return SchemaUpdate(source.name, file, found.added, found.differing, written)


def parsed_values(records: Iterable[Record]) -> list[dict[str, object]]:
    """The values that are JSON objects, parsed; others are left out."""
    values = []
    for record in records:
        try:
            value = json.loads(record.value or b"")
        except ValueError:
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def _schema_of(project: Project, source: Source) -> types.StructType:
    if source.format == "text":
        return types.StructType([types.StructField("value", types.StringType())])
    if source.format == "binary":
        return types.StructType([types.StructField("value", types.BinaryType())])
    if source.format in LINE_FORMATS:
        return _line_schema(project, source)
    file = schema_file(project, source)
    if file is None:
        return parse_ddl(source.schema or "")
    if source.format == "avro":
        return read_avro_schema(file).columns
    if source.format == "protobuf":
        return columns_of(message_class(read_descriptors(file), source.options["message"]).DESCRIPTOR)
    if source.schema == INFER and not file.exists():
        raise SchemaError(
            f"the schema of {source.name} has not been inferred yet: there is no {file}",
            advice="The first run or preview of a pipeline writes it",
        )
    return read_schema(file)


def _line_schema(project: Project, source: Source) -> types.StructType:
    lines = line_format(source.format, source.options)
    if not source.schema:
        return natural_schema(lines)
    file = schema_file(project, source)
    schema = parse_ddl(source.schema) if file is None else read_schema(file)
    check_schema(lines, schema)
    return schema


def _inferred(project: Project, source: Source) -> types.StructType:
    records = sample(project, source.topics)
    schema = _infer_csv(source, records) if source.format == "csv" else infer(parsed_values(records))
    if source.format == "json":
        _report_misfits(source, schema, records)
    if not schema.fields:
        why = f"none of the last {len(records)} records is an object" if records else "there are no records"
        raise SchemaError(
            f"the schema of {source.name} cannot be inferred from {', '.join(source.topics)}: {why}",
            advice='Produce some records first, or give the schema: schema="id STRING, …"',
            place=source.place,
        )
    return schema


def _report_misfits(source: Source, schema: types.StructType, records: list[Record]) -> None:
    """Log which of the sampled records do not fit the schema that was inferred from them."""
    explain = json_explainer(schema, source.options)
    faults = [(record, fault) for record in records if record.value and (fault := explain(record.value))]
    for record, fault in faults[:SHOWN_MISFITS]:
        logger.warning(
            "%s-%d at offset %d does not fit the inferred schema of %s: %s",
            record.topic,
            record.partition,
            record.offset,
            source.name,
            fault,
        )
    if len(faults) > SHOWN_MISFITS:
        logger.warning("%d more records of %s do not fit either", len(faults) - SHOWN_MISFITS, source.name)


def _infer_csv(source: Source, records: list[Record]) -> types.StructType:
    """Columns _c0, _c1 … of strings, as many as most records have: CSV has no types."""
    separator = source.options.get("sep", ",")
    counts: dict[int, int] = {}
    for record in records:
        if record.value:
            number = record.value.decode("utf-8", "replace").count(separator) + 1
            counts[number] = counts.get(number, 0) + 1
    usual = max(counts, key=lambda number: (counts[number], number), default=0)
    return types.StructType([types.StructField(f"_c{number}", types.StringType()) for number in range(usual)])


def _placed(error: SchemaError, source: Source) -> SchemaError:
    message = f"{source.name}: {error.message}"
    return SchemaError(message, advice=error.advice, place=error.place or source.place)
