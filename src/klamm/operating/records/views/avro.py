"""Avro values with a schema that the user gives. A core.

The bytes come from anybody, so everything is bounded: how deep values are nested, and how many there are. The
C code of fastavro has no such bounds. It ends the whole process for a few hundred kilobytes that a schema
containing itself makes deep, and it counts to 2^60 for an array of nulls. So fastavro checks the schema, and
the bytes are read here.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn

from klamm.operating.errors import CannotDo
from klamm.operating.records.views.errors import Undecodable

MOST_DEPTH = 60
"""How deep values may be nested."""

MOST_VALUES = 200_000
"""How many values one record may have."""

MOST_SCHEMA_CHARACTERS = 500_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AvroSchema:
    """A schema, ready to decode values."""

    def __init__(self, text: str) -> None:
        """Raises CannotDo for a text that is no Avro schema."""
        import fastavro

        if len(text) > MOST_SCHEMA_CHARACTERS:
            raise CannotDo(
                f"the schema has {len(text):,} characters: at most {MOST_SCHEMA_CHARACTERS:,} are read"
            )
        try:
            self.text = text
            self._schema: Any = fastavro.parse_schema(json.loads(text))
        except Exception as error:  # fastavro raises errors of any type for a text that is no schema
            shown = f"{type(error).__name__}: {error}".rstrip(": ")[:300]
            raise CannotDo(
                f"this is not an Avro schema: {shown}", advice="Give the text of an .avsc file"
            ) from None
        self._named: dict[str, Any] = {}
        _collect(self._schema, self._named)

    @property
    def name(self) -> str:
        schema = self._schema
        return str(schema["name"]) if isinstance(schema, dict) and "name" in schema else "Avro"

    def decode(self, data: bytes) -> Any:
        """A document of dicts, lists and scalars. Raises Undecodable."""
        reader = _Reader(data, self._named)
        document = reader.read(self._schema, "", 0)
        if reader.at < len(data):
            raise Undecodable(f"{len(data) - reader.at:,} bytes follow the Avro value")
        return document


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "error", "enum", "fixed"):
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
        for inner in ("items", "values", "type"):
            if isinstance(schema.get(inner), dict | list):
                _collect(schema[inner], named)


class _Reader:
    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        self._data = data
        self._named = named
        self._values_left = MOST_VALUES
        self.at = 0

    def read(self, schema: Any, path: str, depth: int) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise Undecodable(f"it has more than {MOST_VALUES:,} values")
        if depth > MOST_DEPTH:
            raise Undecodable(f"it is nested more than {MOST_DEPTH} levels deep")
        if isinstance(schema, list):
            index = self._long(path)
            if not 0 <= index < len(schema):
                raise Undecodable(f"{path or 'the value'} has branch {index} of a union with {len(schema)}")
            return self.read(schema[index], path, depth + 1)
        if isinstance(schema, str):
            if schema in self._named:
                return self.read(self._named[schema], path, depth + 1)
            return self._primitive(schema, path)
        kind = schema["type"]
        if kind in ("record", "error"):
            return {
                field["name"]: self.read(field["type"], f"{path}.{field['name']}".lstrip("."), depth + 1)
                for field in schema["fields"]
            }
        if kind == "array":
            return self._blocks(path, lambda: self.read(schema["items"], f"{path}[]", depth + 1))
        if kind == "map":
            return dict(self._blocks(path, lambda: self._entry(schema["values"], path, depth)))
        if kind == "enum":
            index = self._long(path)
            if not 0 <= index < len(schema["symbols"]):
                raise Undecodable(f"{path} has symbol {index} of an enum with {len(schema['symbols'])}")
            return schema["symbols"][index]
        if kind == "fixed":
            return self._logical(schema, self._take(schema["size"], path))
        if isinstance(kind, dict | list) or kind in self._named:
            return self.read(kind, path, depth + 1)
        return self._logical(schema, self._primitive(kind, path))

    def _entry(self, schema: Any, path: str, depth: int) -> tuple[str, Any]:
        name = self._text(path)
        return name, self.read(schema, f"{path}.{name}", depth + 1)

    def _blocks(self, path: str, item: Callable[[], Any]) -> list[Any]:
        found = []
        while count := self._long(path):
            if count < 0:
                count = -count
                self._long(path)  # the size of the block in bytes
            for _ in range(count):  # ends at the latest with MOST_VALUES
                found.append(item())
        return found

    def _primitive(self, kind: str, path: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self._take(1, path) != b"\0"
            case "int" | "long":
                return self._long(path)
            case "float":
                return struct.unpack("<f", self._take(4, path))[0]
            case "double":
                return struct.unpack("<d", self._take(8, path))[0]
            case "string":
                return self._text(path)
            case "bytes":
                return self._take(self._length(path), path)
        raise Undecodable(f"{path} has the unknown type {kind}")

    def _logical(self, schema: Any, value: Any) -> Any:
        kind = schema.get("logicalType")
        try:
            if isinstance(value, bytes) and kind == "decimal":
                digits = int.from_bytes(value, "big", signed=True)
                return (
                    str(Decimal(digits).scaleb(-int(schema.get("scale", 0)))) if len(value) < 100 else value
                )
            if isinstance(value, bytes) and kind == "uuid" and len(value) == 16:
                return str(uuid.UUID(bytes=value))
            if isinstance(value, int) and kind in _TIMES:
                return _TIMES[kind](value)
        except (ArithmeticError, ValueError):
            pass  # not a time that there is: the number says more
        return value

    def _long(self, path: str) -> int:
        result = shift = 0
        while True:
            if self.at >= len(self._data):
                self._ends(path)
            byte = self._data[self.at]
            self.at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
            if shift > 63:
                raise Undecodable(f"{path or 'the value'} has a number of more than 64 bits")

    def _length(self, path: str) -> int:
        length = self._long(path)
        if length < 0:
            raise Undecodable(f"{path or 'the value'} has a negative length")
        return length

    def _text(self, path: str) -> str:
        data = self._take(self._length(path), path)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Undecodable(f"{path or 'the value'} is a string that is not UTF-8") from None

    def _take(self, size: int, path: str) -> bytes:
        end = self.at + size
        if end > len(self._data):
            self._ends(path)
        taken, self.at = self._data[self.at : end], end
        return taken

    def _ends(self, path: str) -> NoReturn:
        raise Undecodable(f"the value ends within {path or 'the Avro value'}")


def _day_time(value: timedelta) -> str:
    if not timedelta() <= value < timedelta(days=1):
        raise ValueError("not a time of a day")
    return (datetime.combine(date(1970, 1, 1), time()) + value).time().isoformat()


_TIMES: dict[str, Callable[[int], str]] = {
    "date": lambda value: (_EPOCH + timedelta(days=value)).date().isoformat(),
    "timestamp-millis": lambda value: (_EPOCH + timedelta(milliseconds=value)).isoformat(),
    "timestamp-micros": lambda value: (_EPOCH + timedelta(microseconds=value)).isoformat(),
    "local-timestamp-millis": lambda value: (
        (_EPOCH + timedelta(milliseconds=value)).replace(tzinfo=None).isoformat()
    ),
    "local-timestamp-micros": lambda value: (
        (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat()
    ),
    "time-millis": lambda value: _day_time(timedelta(milliseconds=value)),
    "time-micros": lambda value: _day_time(timedelta(microseconds=value)),
}
