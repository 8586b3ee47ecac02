"""Records that a test gives to a topic: values as the sources of the topic expect them, keys, times.

A dictionary becomes JSON, or Avro or Protobuf if a source reads the topic in that format. Text becomes UTF-8,
bytes stay as they are, and None is a record without a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, TypeAlias

from klamm.pipelines.definitions import Source
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.resolving import schema_file

Value: TypeAlias = Mapping[str, Any] | str | bytes | None

_FRAME = b"\x00\x00\x00\x00\x01"
"""Confluent's framing with the schema id 1, which counts as the source's own schema without a registry."""


@dataclass(frozen=True)
class Message:
    """A record with more than a value. `timestamp` is in milliseconds since 1970, or a datetime with a time
    zone."""

    value: Value
    key: str | bytes | None = None
    timestamp: int | datetime | None = None
    partition: int | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


def messages(records: Iterable[Value | Message], key: str | None) -> Iterator[Message]:
    """The records as messages. `key` names the field of dictionaries that is their key."""
    for record in records:
        message = record if isinstance(record, Message) else Message(record)
        if key is not None and message.key is None and isinstance(message.value, Mapping):
            if key not in message.value:
                raise ValueError(f"a record has no field {key}, which is to be its key: {message.value}")
            found = message.value[key]
            message = replace(message, key=None if found is None else str(found))
        yield message


def encoded(value: Value, sources: Iterable[Source], project: Project) -> bytes | None:
    """The bytes of a value, for the sources that read its topic."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} cannot be a record: give a dictionary, text, bytes or None")
    for source in sources:
        if source.format == "avro":
            return _avro(value, source, project)
        if source.format == "protobuf":
            return _protobuf(value, source, project)
        if source.format != "json":
            raise TypeError(f"{source.name} reads {source.format}: give its records as text or bytes")
    return json.dumps(value, default=_as_json).encode()


def _avro(value: Mapping[str, Any], source: Source, project: Project) -> bytes:
    import fastavro

    file = schema_file(project, source)
    assert file is not None, "an Avro source names its schema's file"
    is_framed = source.options.get("framing") == "confluent"
    if is_framed and ("registry" in source.options or list(file.parent.glob(f"{file.stem}.*.avsc"))):
        raise TypeError(f"{source.name} finds its schemas by their id: give its records as bytes")
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(file.read_text())), dict(value))
    return (_FRAME if is_framed else b"") + stream.getvalue()


def _protobuf(value: Mapping[str, Any], source: Source, project: Project) -> bytes:
    from google.protobuf import json_format

    from klamm.pipelines.schemas.protobuf import message_class, read_descriptors

    file = schema_file(project, source)
    assert file is not None, "a Protobuf source names its descriptor set"
    if source.options.get("framing") == "confluent":
        raise TypeError(f"{source.name} expects Confluent's framing: give its records as bytes")
    message = message_class(read_descriptors(file), source.options["message"])()
    json_format.ParseDict(json.loads(json.dumps(value, default=_as_json)), message)
    encoded: bytes = message.SerializeToString()
    return encoded


def _as_json(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{value!r} cannot be written as JSON")
