"""Checks whether the newest records of a source fit its schema, where possible with the decoder's own
code."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from klamm.client.results import Record
from klamm.pipelines.definitions import Source
from klamm.pipelines.errors import DecoderUnavailable, PipelineError
from klamm.pipelines.findings import Finding
from klamm.pipelines.line_formats import LINE_FORMATS, line_format
from klamm.pipelines.project import Project
from klamm.pipelines.sampling import sample
from klamm.pipelines.schemas.fitting import unknown_fields
from klamm.pipelines.schemas.resolving import parsed_values, schema_file

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LINTED_RECORDS = 200
"""How many of the newest records are checked: about a second's work."""

SHOWN_FIELDS = 5

Check = Callable[[bytes], str | None]
"""From a value to what is wrong with it, or None."""


Sampled = Callable[[Sequence[str]], list[Record]]
"""From topics to their newest records. Raises SamplingFailed."""


def check_records(
    project: Project, source: Source, schema: StructType, sampled: Sampled | None = None
) -> Iterator[Finding]:
    """What is wrong with the newest records of a source: those `sampled`, or those read now."""
    check = _check_of(project, source, schema)
    try:
        if sampled is None:
            records = sample(project, source.topics, LINTED_RECORDS)
        else:
            records = sorted(sampled(source.topics)[:LINTED_RECORDS], key=_coordinates)
        if check is not None:
            yield from _misfits(source, records, check)
    except PipelineError as error:
        yield Finding("warning", source.place, f"{source.name}: {error.message}", error.advice)
        return
    if source.format == "json":
        yield from _unknown_fields(project, source, schema, records)


def _coordinates(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _misfits(source: Source, records: list[Record], check: Check) -> Iterator[Finding]:
    valued = [record for record in records if record.value is not None]
    faults = [(record, fault) for record in valued if (fault := check(record.value or b"")) is not None]
    if not faults:
        return
    record, fault = faults[-1]
    where = f"{record.topic}-{record.partition} at offset {record.offset}"
    what = (
        f"{len(faults)} of the newest {len(valued)} records do not fit the schema of {source.name}; "
        f"{where}: {fault}"
    )
    becomes = {"dead_letter": "go to the dead-letter topic", "drop": "are dropped", "warn": "have null there"}
    fate = becomes.get(source.undecodable, "stop the pipeline")
    yield Finding(
        "error" if len(faults) == len(valued) else "warning", source.place, what, f"Such records {fate}"
    )


def _unknown_fields(
    project: Project, source: Source, schema: StructType, records: list[Record]
) -> Iterator[Finding]:
    names = {name: None for value in parsed_values(records) for name in unknown_fields(value, schema)}
    if not names:
        return
    shown = ", ".join(list(names)[:SHOWN_FIELDS]) + (" …" if len(names) > SHOWN_FIELDS else "")
    file = schema_file(project, source)
    how = f"Add them to {file.name}" if file is not None else "Add them to the schema"
    what = f"records of {source.name} have fields that its schema does not have: {shown}"
    yield Finding("warning", source.place, what, f"{how} if you need them; they are ignored now")


def _check_of(project: Project, source: Source, schema: StructType) -> Check | None:
    if source.format == "json":
        return _json_check(source, schema)
    if source.format == "csv":
        return lambda value: _csv_fault(value, source, len(schema))
    if source.format == "text" and source.options.get("encoding", "UTF-8").upper() in ("UTF-8", "UTF8"):
        return _text_fault
    if source.format in ("avro", "protobuf"):
        return _worker_check(project, source)
    if source.format in LINE_FORMATS:
        return _line_check(source, schema)
    return None


def _json_check(source: Source, schema: StructType) -> Check:
    from klamm.pipelines.schemas.explaining import json_explainer

    explain = json_explainer(schema, source.options)
    if any(name.startswith("allow") for name in source.options):
        # With options that accept more than JSON, only Spark's reader can tell.
        return lambda value: explain(value) if _is_json(value) else None
    return explain


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _csv_fault(value: bytes, source: Source, columns: int) -> str | None:
    text = value.decode("utf-8", "replace").rstrip("\r\n")
    separator, quote = source.options.get("sep", ","), source.options.get("quote", '"')
    if len(separator) != 1 or len(quote) != 1:
        return None  # Python's reader supports no others
    found = len(next(csv.reader(io.StringIO(text), delimiter=separator, quotechar=quote), []))
    return None if found == columns else f"it has {found} columns, the schema {columns}"


def _text_fault(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8: {error}"
    return None


def _line_check(source: Source, schema: StructType) -> Check:
    import pyarrow as pa

    from klamm.pipelines.decoding.lines import decode_values, found_schema
    from klamm.pipelines.schemas.fitting import text_fits

    lines = line_format(source.format, source.options)
    found = found_schema(lines, schema)
    own_time_formats = any(name.endswith("Format") for name in source.options)

    def check(value: bytes) -> str | None:
        columns, errors = decode_values(lines, found, pa.array([value], pa.binary()))
        if errors[0].is_valid:
            return str(errors[0])
        for wanted, raw, column in zip(schema, found, columns, strict=True):
            text = column[0].as_py()
            if wanted.dataType == raw.dataType or not isinstance(text, str):
                continue
            if not text_fits(text, wanted.dataType, own_time_formats=own_time_formats):
                kind = wanted.dataType.simpleString().upper()
                return f"{wanted.name} is {text!r}, which does not fit {kind}"
        return None

    return check


def _worker_check(project: Project, source: Source) -> Check:
    from klamm.pipelines.decoding import avro, protobuf
    from klamm.pipelines.schemas.avro import read_avro_schema
    from klamm.pipelines.schemas.protobuf import read_descriptors

    file = schema_file(project, source)
    assert file is not None, "the schema was read from it"
    if source.format == "avro":
        read = avro.reader(read_avro_schema(file), source.options)
    else:
        is_framed = source.options.get("framing") == "confluent"
        read = protobuf.reader(read_descriptors(file), source.options["message"], is_framed)

    def check(value: bytes) -> str | None:
        try:
            read(value)
        except DecoderUnavailable:
            raise
        except Exception as error:  # decoders raise errors of any type on bytes that do not fit
            return str(error) or type(error).__name__
        return None

    return check
