"""Parses the rows of JSON-lines and CSV files into records. A core.

A row that cannot be parsed becomes a BadLine with the line's number; the rows after it are parsed all the
same. JSON lines are sent unchanged. CSV rows become JSON objects with the names of the first row.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

MOST_LINE_BYTES = 1_000_000
"""With key and headers a record of this size fits into a request of max.request.size (1 MiB)."""

_SECONDS_BEFORE = 100_000_000_000
"""Numbers below this are seconds since 1970 (until the year 5138), others are milliseconds (from 1973)."""

_LAST_TIME_MS = 2**63 - 1
"""The latest timestamp that a record can have."""

_LONGEST_NUMBER = 400
"""The most characters of a number. Longer texts are identifiers, and Python does not parse the longest."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_decode = json.JSONDecoder().decode  # made once instead of for every row
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_WORDS: Mapping[str, bool | None] = {"": None, "true": True, "false": False}


class Row(NamedTuple):
    """One record."""

    line: int
    value: bytes
    key: bytes | None
    time_ms: int | None


class BadLine(NamedTuple):
    """A row that cannot be sent, and why."""

    line: int
    reason: str


Read: TypeAlias = Iterator[Row | BadLine]


def json_rows(lines: Iterable[bytes], *, key: str | None = None, time: str | None = None) -> Read:
    """The rows of lines with a JSON object each, unchanged. Empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        value = line.rstrip(b"\r\n")
        if not value.strip():
            continue
        try:
            _check_size(value)  # first: a line that is too long was cut, and would not parse
            yield _row(number, value, _decode(value.decode()), key, time)
        except (ValueError, RecursionError) as error:
            yield BadLine(number, _reason(error))


def csv_rows(
    lines: Iterable[str],
    *,
    key: str | None = None,
    time: str | None = None,
    delimiter: str = ",",
    infers_types: bool = False,
) -> Read:
    """The rows of CSV lines with a header row. Fields stay strings unless `infers_types`."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        first_line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadLine(first_line, str(error))
            continue
        if not fields:
            continue
        if names is None:
            names = fields
            if twice := next((name for name in names if names.count(name) > 1), None):
                yield BadLine(first_line, f"the header has {twice!r} twice")
                return
            if missing := next(
                (name for name in (key, time) if name is not None and name not in names), None
            ):
                yield BadLine(first_line, f"the header has no {missing!r}, only {', '.join(names)}")
                return
            continue
        try:
            yield _csv_row(first_line, names, fields, key, time, infers_types)
        except ValueError as error:
            yield BadLine(first_line, _reason(error))


def _csv_row(
    line: int, names: list[str], fields: list[str], key: str | None, time: str | None, infers_types: bool
) -> Row:
    if len(fields) != len(names):
        raise ValueError(f"it has {len(fields)} fields, but the header has {len(names)}")
    values: Iterable[object] = map(inferred, fields) if infers_types else fields
    row = dict(zip(names, values, strict=True))
    value = _encode(row).encode()
    _check_size(value)
    return _row(line, value, row, key, time)


def _check_size(value: bytes) -> None:
    if len(value) > MOST_LINE_BYTES:
        raise ValueError(f"it is longer than {MOST_LINE_BYTES:,} bytes")


def _row(line: int, value: bytes, row: object, key: str | None, time: str | None) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"it is not a JSON object, but a {type(row).__name__}")
    return Row(
        line,
        value,
        None if key is None else _key(_field(row, key)),
        None if time is None else milliseconds(_field(row, time)),
    )


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"it has no field {name!r}")
    return row[name]


def _key(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return _encode(value).encode()


def inferred(text: str) -> int | float | bool | str | None:
    """The number, true, false or null that the text is; other texts, such as `007` and `+1`, stay texts."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.match(text):
        return int(text)
    number = float(text) if _NUMBER.match(text) else math.inf
    return number if math.isfinite(number) else text  # JSON has no infinity


def milliseconds(value: Any) -> int:
    """A time as milliseconds since 1970, from ISO 8601 (UTC without a zone), seconds or milliseconds."""
    if isinstance(value, str):
        if not _NUMBER.match(value):
            return _from_text(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a valid time")
    if not abs(value) <= _LAST_TIME_MS:
        raise ValueError(f"{value!r} is not a valid time")
    result = int(value * 1000 if abs(value) < _SECONDS_BEFORE else value)
    if result < 0:
        raise ValueError(f"{value!r} is a time before 1970")
    return result


def _from_text(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    result = int(moment.timestamp() * 1000)
    if result < 0:
        raise ValueError(f"{text!r} is a time before 1970")
    return result


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return f"it is not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
