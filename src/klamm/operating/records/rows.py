"""Records as rows of a list: where they lie, and the beginning of key and value in one line. A core.

A row is small, however large its record is: a page of records of 10 MB fits into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from klamm.client.results import Headers, Record
from klamm.model.dead_letter_headers import ERROR, RULE
from klamm.operating.records.matching import Decode
from klamm.operating.records.views.text import Preview, one_line, preview
from klamm.operating.records.views.trees import jsonable

MOST_HEADERS = 5
"""How many names of headers a row has."""


class Row(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    """In milliseconds since 1970; -1 if the record has none."""
    key: Preview | None
    value: Preview | None
    """None is null: a tombstone in a compacted topic."""
    header_names: tuple[str, ...] = ()
    reason: str = ""
    """Why the record is in the dead-letter topic, if it is one of those."""

    def as_json(self) -> dict[str, Any]:
        return self._asdict() | {
            "key": None if self.key is None else self.key._asdict(),
            "value": None if self.value is None else self.value._asdict(),
        }


MakeRow = Callable[[Record], Row]


def row_maker(decode: Decode | None = None) -> MakeRow:
    """`decode` is for values that are neither text nor JSON."""

    def make(record: Record) -> Row:
        headers = record.headers
        return Row(
            record.partition,
            record.offset,
            record.timestamp,
            preview(record.key),
            preview(record.value) if decode is None else _decoded_preview(record.value, decode),
            tuple(one_line(name)[:100] for name, _ in headers[:MOST_HEADERS]),
            _reason(headers) if headers else "",
        )

    return make


def header_texts(headers: Headers) -> Mapping[str, str]:
    """The headers as texts, by name; of several with the same name, the first."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name, (value or b"").decode(errors="replace"))
    return found


def _decoded_preview(data: bytes | None, decode: Decode) -> Preview | None:
    if data is None:
        return None
    try:
        text = json.dumps(decode(data), ensure_ascii=False, default=jsonable)
    except Exception:  # decoders raise errors of any type on bytes that do not fit
        return preview(data)
    return preview(text.encode(errors="replace"))._replace(size=len(data))  # type: ignore[union-attr]


def _reason(headers: Headers) -> str:
    told = header_texts(headers)
    if RULE not in told:
        return ""
    error = told.get(ERROR, "")
    return one_line(f"{told[RULE]}: {error}" if error else told[RULE])[:300]
