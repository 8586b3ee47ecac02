"""Exports the records of spans as JSON lines or CSV, piece by piece.

CSV has a line per record: where the record lies, key, value, and the headers as JSON. Keys and values that
are not UTF-8 are in base64; the columns `key_encoding` and `value_encoding` say `text`, `base64` or `null`.
A cell that a spreadsheet would take for a formula begins with an apostrophe.

Steps block; the console runs them in threads (`stepping.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic

from klamm.client.plain.consumer import Consumer
from klamm.client.results import Headers, Record, TopicPartition
from klamm.operating.errors import CannotDo
from klamm.operating.records.as_json import as_json, json_lines
from klamm.operating.records.reading import Reading
from klamm.operating.records.spans import Span
from klamm.operating.records.walking import FETCH_OPTIONS, PATIENCE_S

STEP_RECORDS = 1_000

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "key_encoding",
    "value",
    "value_encoding",
    "headers",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


def export(
    consumer: Callable[..., Consumer],
    topic: str,
    spans: Mapping[int, Span],
    format_: ExportFormat,
    *,
    passes: Callable[[Record], bool] | None = None,
    most_records: int | None = None,
) -> Generator[bytes, None, None]:
    """The file, in pieces; pieces may be empty. Raises CannotDo if a partition does not answer."""
    write = json_lines if format_ is ExportFormat.JSONL else csv_lines
    if format_ is ExportFormat.CSV:
        yield _line(COLUMNS)
    left = most_records
    with consumer(**FETCH_OPTIONS) as made:
        reading = Reading(made, {TopicPartition(topic, each): span for each, span in spans.items()})
        asked = monotonic()
        while not reading.is_done and (left is None or left > 0):
            records = reading.step(STEP_RECORDS)
            if records:
                asked = monotonic()
            elif not reading.is_done and monotonic() - asked > PATIENCE_S:
                raise CannotDo(
                    f"{topic} did not answer for {PATIENCE_S:.0f} s", advice="See whether its leaders are up"
                )
            if passes is not None:
                records = [each for each in records if passes(each)]
            if left is not None:
                records = records[:left]
                left -= len(records)
            yield write(records)


def csv_lines(records: Iterable[Record]) -> bytes:
    return b"".join([_line(_cells(each)) for each in records])


def _cells(record: Record) -> Iterable[str]:
    time = ""
    if record.timestamp >= 0:
        moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        time = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        record.topic,
        str(record.partition),
        str(record.offset),
        time,
        *_encoded(record.key),
        *_encoded(record.value),
        _headers(record.headers),
    )


def _encoded(data: bytes | None) -> tuple[str, str]:
    if data is None:
        return "", "null"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _headers(headers: Headers) -> str:
    found = as_json(Record("", 0, 0, 0, None, None, headers))["headers"]
    return json.dumps(found, ensure_ascii=False) if found else ""


def _line(cells: Iterable[str]) -> bytes:
    return (",".join([_cell(each) for each in cells]) + "\r\n").encode(errors="replace")


def _cell(text: str) -> str:
    safe = "'" + text if text.startswith(_FORMULA) else text
    return '"' + safe.replace('"', '""') + '"' if set(safe) & set(",\"\r\n'") else safe
