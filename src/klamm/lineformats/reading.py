"""From lines to columns, over Arrow: no Python object is made per line that fits its format.

Exceptions are values with escapes and lines that do not fit: Python looks at these one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.lineformats.format import REQUEST, REQUEST_PARTS, Field, LineFormat
from klamm.lineformats.times import time_reader

NOT_TEXT = "the line is not UTF-8"

TYPES = {
    "text": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "time": pa.timestamp("us", "UTC"),
}

SHOWN_CHARACTERS = 40
"""How much of a line an error shows, from where the line does not fit."""

_REQUEST = r"\A(?P<request_method>[A-Za-z_-]+) (?P<request_uri>\S+)(?: (?P<server_protocol>[A-Z]+/[\d.]+))?\z"
_ESCAPE = re.compile(rb'\\(?:x([0-9A-Fa-f]{2})|(["\\bnrtv]))')
_ESCAPED = {b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of some lines. `errors` says of each line that does not fit why; null for others."""

    values: dict[str, pa.Array]
    errors: pa.Array


@dataclass(slots=True)
class _Errors:
    """The errors of lines, by their numbers. The first one of a line stays."""

    texts: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, text: str) -> None:
        self.texts.setdefault(number, text)

    def column(self, count: int) -> pa.Array:
        if not self.texts:
            return pa.nulls(count, pa.string())
        return pa.array([self.texts.get(number) for number in range(count)], pa.string())


def read_lines(
    line_format: LineFormat,
    lines: pa.Array,
    wanted: Collection[str] | None = None,
    as_text: Collection[str] = (),
) -> Columns:
    """The columns of lines: those that are `wanted`, or all. Those in `as_text` are text whatever their kind.

    A line may end with newlines, which do not count. A null gives nulls, and no error.
    """
    errors = _Errors()
    lines = _without_newlines(_typed(line_format, lines, errors))
    found = _extracted(line_format, lines, errors)
    columns = [each for each in line_format.columns if wanted is None or each.name in wanted]
    values: dict[str, pa.Array] = {}
    for each in columns:
        raw = found.get(each.name)
        if raw is None:
            if each.name not in values:
                values |= _parts(_text(line_format, found[REQUEST]))
        elif each.name in as_text or each.kind == "text":
            values[each.name] = _text(line_format, raw)
        elif each.kind == "time":
            values[each.name] = _times(each, _known(line_format, raw), errors)
        else:
            values[each.name] = _known(line_format, raw).cast(pa.string()).cast(TYPES[each.kind])
    return Columns({each.name: values[each.name] for each in columns}, errors.column(len(lines)))


def _typed(line_format: LineFormat, lines: pa.Array, errors: _Errors) -> pa.Array:
    """The lines as text, or as bytes, as the format needs them."""
    if not line_format.is_text:
        return lines.cast(pa.binary())
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_decoded(line) for line in lines.cast(pa.binary()).to_pylist()]
    for number in range(len(lines)):
        if texts[number] is None and lines[number].is_valid:
            errors.add(number, NOT_TEXT)
    return pa.array(texts, pa.string())


def _decoded(line: bytes | None) -> str | None:
    try:
        return None if line is None else line.decode()
    except UnicodeDecodeError:
        return None


def _without_newlines(lines: pa.Array) -> pa.Array:
    if pc.any(pc.or_(pc.ends_with(lines, "\n"), pc.ends_with(lines, "\r"))).as_py():
        return pc.replace_substring_regex(lines, r"[\r\n]+\z", "")
    return lines


# ---- finding the fields


def _extracted(line_format: LineFormat, lines: pa.Array, errors: _Errors) -> dict[str, pa.Array]:
    """The fields as they are written; null for lines that do not fit, which get an error."""
    left = np.flatnonzero(lines.is_valid().to_numpy(zero_copy_only=False))
    places = np.full(len(lines), -1, np.int64)
    pieces: dict[str, list[pa.Array]] = {each.name: [] for each in line_format.fields}
    tried = 0
    for pattern in line_format.patterns:
        those = lines if len(left) == len(lines) else lines.take(pa.array(left))
        found = pc.extract_regex(those, pattern)
        fits = found.is_valid().to_numpy(zero_copy_only=False)
        places[left[fits]] = tried + np.flatnonzero(fits)
        for name, parts in pieces.items():
            number = found.type.get_field_index(name)
            parts.append(found.field(number) if number >= 0 else pa.nulls(len(those), lines.type))
        tried += len(those)
        left = left[~fits]
        if not len(left):
            break
    if len(left):
        not_fitting = pa.array(left)
        for number, text in zip(left.tolist(), why_not(line_format, lines.take(not_fitting)), strict=True):
            errors.add(number, text)
    if tried == len(lines) and not len(left) and (places >= 0).all():
        return {name: parts[0] for name, parts in pieces.items()}
    rows = pa.array(places, mask=places < 0)
    return {name: pa.concat_arrays(parts).take(rows) for name, parts in pieces.items()}


def why_not(line_format: LineFormat, lines: pa.Array) -> list[str]:
    """Why lines do not fit: where each stops to match, and what is expected there."""
    count = len(lines)
    if not line_format.pieces:
        return ["the line does not match the pattern"] * count
    reached = np.zeros(count, np.int64)
    ends = np.zeros(count, np.int64)
    left = np.arange(count)
    length = pc.utf8_length if line_format.is_text else pc.binary_length
    prefix = ""
    flags = "" if line_format.is_text else "(?s)"
    for piece, _ in line_format.pieces:
        prefix += piece
        found = pc.extract_regex(lines.take(pa.array(left)), rf"{flags}\A(?P<klamm_fitting>{prefix})")
        fits = found.is_valid().to_numpy(zero_copy_only=False)
        left = left[fits]
        if not len(left):
            break
        reached[left] += 1
        ends[left] = length(found.field("klamm_fitting").filter(pa.array(fits))).to_numpy()
    told = []
    for line, done, end in zip(lines.to_pylist(), reached.tolist(), ends.tolist(), strict=True):
        told.append(_stop(line_format, line, done, end))
    return told


def _stop(line_format: LineFormat, line: str | bytes, done: int, end: int) -> str:
    if not line:
        return "the line is empty"
    shown = line[end : end + SHOWN_CHARACTERS]
    if isinstance(shown, bytes):
        shown = shown.decode("utf-8", "backslashreplace")
    rest = repr(shown) + ("…" if len(line) > end + SHOWN_CHARACTERS else "")
    where = f"fits up to character {end}" if end else "does not fit from its beginning on"
    if done == len(line_format.pieces):
        return f"the line {where}, where the format ends; {rest} follows"
    expected = line_format.pieces[done][1]
    if end == len(line):
        return f"the line ends at character {end}, where {expected} is expected"
    return f"the line {where}: {expected} is expected, not {rest}"


# ---- values


def _known(line_format: LineFormat, raw: pa.Array) -> pa.Array:
    """The values, with null for those that stand for a missing one."""
    missing = pa.array(list({"", line_format.missing})).cast(raw.type)
    is_missing = pc.is_in(raw, value_set=missing)
    return pc.if_else(is_missing, pa.scalar(None, raw.type), raw) if pc.any(is_missing).as_py() else raw


def _text(line_format: LineFormat, raw: pa.Array) -> pa.Array:
    values = _known(line_format, raw)
    if line_format.is_text:
        return values
    escapes: Callable[[bytes], bytes] | None = None
    if line_format.escapes != "none":
        escapes = _from_json if line_format.escapes == "json" else _unescaped
    if escapes is not None:
        is_escaped = pc.fill_null(pc.match_substring(values, "\\"), False)
        if pc.any(is_escaped).as_py():
            mended = [escapes(value) for value in values.filter(is_escaped).to_pylist()]
            values = pc.replace_with_mask(values, is_escaped, pa.array(mended, pa.binary()))
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = values.to_pylist()
        return pa.array([None if one is None else one.decode("utf-8", "backslashreplace") for one in texts])


def _unescaped(value: bytes) -> bytes:
    """The value without its escapes, if it is text then."""
    found = _ESCAPE.sub(_character, value)
    return value if _decoded(found) is None else found


def _character(escape: re.Match[bytes]) -> bytes:
    if escape[1] is not None:
        return bytes.fromhex(escape[1].decode())
    return _ESCAPED.get(escape[2], escape[2])


def _from_json(value: bytes) -> bytes:
    try:
        return str(json.loads(b'"' + value + b'"', strict=False)).encode()
    except (ValueError, UnicodeError):
        return value


def _times(each: Field, values: pa.Array, errors: _Errors) -> pa.Array:
    """Each different time is read once: neighbouring lines have the same ones."""
    encoded = values.cast(pa.string()).dictionary_encode()
    read = time_reader(each.time)
    texts = encoded.dictionary.to_pylist()
    moments = [read(text) for text in texts]
    if None in moments:
        bad = {number for number, moment in enumerate(moments) if moment is None}
        for row, number in enumerate(encoded.indices.to_pylist()):
            if number in bad:
                errors.add(row, f"{each.shown} is {texts[number]!r}, and there is no such time")
    return pa.array(moments, TYPES["time"]).take(encoded.indices)


def _parts(request: pa.Array) -> dict[str, pa.Array]:
    """The parts of requests; null if a client has sent something else."""
    parts = pc.extract_regex(request, _REQUEST).flatten()
    null = pa.scalar(None, pa.string())
    return {
        name: pc.if_else(pc.equal(part, ""), null, part)
        for name, part in zip(REQUEST_PARTS, parts, strict=True)
    }
