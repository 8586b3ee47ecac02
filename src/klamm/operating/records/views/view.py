"""What one key or value is, and how it is shown: as a tree, as text, in hexadecimal. A core."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from klamm.operating.records.views.avro import AvroSchema
from klamm.operating.records.views.errors import Undecodable
from klamm.operating.records.views.protobuf import ProtobufSchema, decode_raw, without_message_indexes
from klamm.operating.records.views.text import HexRow, decoded, hex_rows, visible
from klamm.operating.records.views.trees import Node, as_text, tree_of

MOST_TREE_BYTES = 2_000_000
"""The largest value that becomes a tree."""

MOST_TEXT_CHARACTERS = 200_000
MOST_HEX_ROWS = 1_024
"""Of these a page shows so much; all of a value can be downloaded."""

CONFLUENT_HEADER_BYTES = 5
"""A zero byte, and the id of the schema in four bytes: how serializers with a schema registry begin."""

CONTAINER_MAGIC = b"Obj\x01"


class Format(StrEnum):
    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Kind(StrEnum):
    """What bytes are shown as."""

    NULL = "null"
    EMPTY = "empty"
    JSON = "json"
    TEXT = "text"
    BINARY = "binary"
    AVRO = "avro"
    PROTOBUF = "protobuf"


Schema = AvroSchema | ProtobufSchema


@dataclass(frozen=True)
class View:
    kind: Kind
    size: int = 0
    """In bytes."""
    tree: Node | None = None
    text: str = ""
    """The raw view: the text as it is with hidden characters made visible, or the document as JSON."""
    hex: list[HexRow] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    """What else is known: the id of the schema, or that something is cut off."""
    error: str = ""
    """Why the bytes are not shown in the format that was asked for."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "size": self.size,
            "tree": None if self.tree is None else self.tree.as_json(),
            "text": self.text,
            "hex": [each._asdict() for each in self.hex],
            "notes": list(self.notes),
            "error": self.error,
        }


def view(data: bytes | None, format_: Format = Format.AUTO, schema: Schema | None = None) -> View:
    """How bytes are shown. A format that does not fit says why in `error`, and shows what fits instead."""
    if data is None:
        return View(Kind.NULL)
    if not data:
        return View(Kind.EMPTY)
    if format_ is Format.HEX:
        return _binary(data)
    if format_ is Format.TEXT:
        return _text(data, data.decode(errors="backslashreplace"))
    if format_ in (Format.AVRO, Format.PROTOBUF):
        return _with_schema(data, format_, schema)
    try:
        return _json(data)
    except Undecodable as problem:
        error = str(problem) if format_ is Format.JSON else ""
    text = decoded(data)
    if text is not None:
        return _with(_text(data, text), error=error)
    return _with(_binary(data), error=error, notes=_guesses(data))


def document_of(data: bytes, format_: Format, schema: Schema | None) -> Any:
    """The document in a value: what filters look at, and rows show. Raises Undecodable."""
    if len(data) > MOST_TREE_BYTES:
        raise Undecodable(f"it has {len(data):,} bytes: more than {MOST_TREE_BYTES:,} are not decoded")
    if format_ is Format.PROTOBUF and schema is None:
        return decode_raw(data)
    if schema is None:
        return _parsed(data)
    return _decoded(data, schema)[0]


def confluent_id(data: bytes | None) -> int | None:
    """The schema id that a value begins with, if it is framed as serializers with a registry do it."""
    if data is None or len(data) <= CONFLUENT_HEADER_BYTES or data[0] != 0:
        return None
    number = int.from_bytes(data[1:CONFLUENT_HEADER_BYTES], "big")
    return number if 0 < number < 2**31 else None


def _with_schema(data: bytes, format_: Format, schema: Schema | None) -> View:
    kind = Kind.AVRO if format_ is Format.AVRO else Kind.PROTOBUF
    notes: tuple[str, ...] = ()
    try:
        if len(data) > MOST_TREE_BYTES:
            raise Undecodable(f"it has {len(data):,} bytes: more than {MOST_TREE_BYTES:,} are not decoded")
        if schema is not None:
            document, notes = _decoded(data, schema)
        elif format_ is Format.PROTOBUF:
            document, notes = decode_raw(data), ("decoded without a schema: fields have numbers only",)
        else:
            raise Undecodable(
                "Avro values can only be read with their schema: give the text of an .avsc file"
            )
    except Undecodable as problem:
        fallback = view(data)
        return _with(fallback, error=str(problem), notes=_guesses(data))
    return View(kind, len(data), tree_of(document), _cut(visible(as_text(document))), _hex(data), notes)


def _decoded(data: bytes, schema: Schema) -> tuple[Any, tuple[str, ...]]:
    """With the framing of schema registries if there is one, else without."""
    number = confluent_id(data)
    if number is not None:
        framed = data[CONFLUENT_HEADER_BYTES:]
        try:
            if isinstance(schema, ProtobufSchema):
                framed = without_message_indexes(framed)
            return schema.decode(framed), (f"written with schema {number} of a registry",)
        except Undecodable as problem:
            try:
                return schema.decode(data), ()
            except Undecodable:
                raise Undecodable(
                    f"it was written with schema {number} of a registry, and {problem}"
                ) from None
    return schema.decode(data), ()


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise Undecodable("it is not JSON: it is nested too deep") from None
    except UnicodeDecodeError as error:
        raise Undecodable(f"it is not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        why = error.msg[:1].lower() + error.msg[1:]
        raise Undecodable(f"it is not JSON: {why}, line {error.lineno}, column {error.colno}") from None
    except ValueError as error:  # a number of thousands of digits
        raise Undecodable(f"it is not JSON that can be read: {str(error)[:200]}") from None


def _json(data: bytes) -> View:
    if len(data) > MOST_TREE_BYTES:
        raise Undecodable(f"it has {len(data):,} bytes: more than {MOST_TREE_BYTES:,} do not become a tree")
    document = _parsed(data)
    return View(
        Kind.JSON, len(data), tree_of(document), _cut(visible(data.decode())), _hex(data), _cuts(data)
    )


def _text(data: bytes, text: str) -> View:
    return View(
        Kind.TEXT, len(data), None, _cut(visible(text[: MOST_TEXT_CHARACTERS + 1])), _hex(data), _cuts(data)
    )


def _binary(data: bytes) -> View:
    return View(Kind.BINARY, len(data), None, "", _hex(data), _cuts(data))


def _hex(data: bytes) -> list[HexRow]:
    return hex_rows(data, rows=MOST_HEX_ROWS)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT_CHARACTERS else text[:MOST_TEXT_CHARACTERS] + " …"


def _cuts(data: bytes) -> tuple[str, ...]:
    if len(data) <= MOST_TEXT_CHARACTERS:
        return ()
    return (f"only the beginning of {len(data):,} bytes is shown: download the record for all of it",)


def _guesses(data: bytes) -> tuple[str, ...]:
    """What binary values look like."""
    if (number := confluent_id(data)) is not None:
        return (f"begins like a value of schema {number} of a registry: choose Avro or Protobuf",)
    if data.startswith(CONTAINER_MAGIC):
        return ("is an Avro container file: download the record, and open it as a file",)
    try:
        if len(data) <= MOST_TREE_BYTES and decode_raw(data):
            return ("could be a Protobuf message: choose Protobuf to see its fields",)
    except Undecodable:
        pass
    return ()


def _with(made: View, *, error: str = "", notes: tuple[str, ...] = ()) -> View:
    return View(made.kind, made.size, made.tree, made.text, made.hex, (*made.notes, *notes), error)
