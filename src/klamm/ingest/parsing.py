"""Makes JSON objects of lines, by their format, over Arrow. A core; needs klamm[arrow].

A line that does not fit its format stays as it is, and so does one whose JSON would be too long for a record.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc

from klamm.lineformats.format import LineFormat
from klamm.lineformats.reading import read_lines
from klamm.records.kernels import pyarrow as pa

_SPECIAL = r'["\\\x00-\x1f]'
"""Characters that JSON writes otherwise."""


def json_records(line_format: LineFormat, lines: Any, max_bytes: int) -> tuple[Any, Any]:
    """The values of records, and for lines that stay as they are why; null for others."""
    columns = read_lines(line_format, lines)
    parts: list[Any] = []
    for name, values in columns.values.items():
        parts += [("," if parts else "{") + json.dumps(name) + ":", _json(values)]
    objects = pc.binary_join_element_wise(
        *parts, "}", "", null_handling="replace", null_replacement="null"
    ).cast(pa.binary())
    is_long = pc.greater(pc.binary_length(objects), max_bytes)
    reasons = columns.errors
    if pc.any(is_long).as_py():
        too_long = f"its JSON is longer than {max_bytes:,} bytes"
        reasons = pc.if_else(pc.and_(is_long, pc.is_null(reasons)), too_long, reasons)
    if reasons.null_count == len(reasons):
        return objects, reasons
    return pc.if_else(pc.is_null(reasons), objects, lines), reasons


def _json(values: Any) -> Any:
    """The values as JSON; null stays null."""
    if pa.types.is_timestamp(values.type):
        times = values.dictionary_encode()
        texts = [moment.replace(tzinfo=None).isoformat() for moment in times.dictionary.to_pylist()]
        return _quoted(pa.array([f"{text}Z" for text in texts], pa.string()).take(times.indices))
    if not pa.types.is_string(values.type):
        return values.cast(pa.string())
    is_special = pc.fill_null(pc.match_substring_regex(values, _SPECIAL), False)
    if pc.any(is_special).as_py():
        written = [_inner(text) for text in values.filter(is_special).to_pylist()]
        values = pc.replace_with_mask(values, is_special, pa.array(written, pa.string()))
    return _quoted(values)


def _quoted(texts: Any) -> Any:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _inner(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
