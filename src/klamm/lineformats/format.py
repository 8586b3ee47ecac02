"""What a format of lines is: its fields with their kinds, and the patterns that find them.

Patterns are in the syntax of RE2, which takes time linear in the length of a line whatever the pattern and
the line are. Each field is a named group. A pattern matches whole lines.

A log format of a server has several patterns, tried one after the other. The first one is strict: the value
of a field does not contain the character that follows it in the format, which RE2 matches faster. The next
one is lenient, for a user name with a space in it and the like; where both match, they find the same values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "int", "bigint", "double", "time"]

Escapes: TypeAlias = Literal["default", "json", "none"]
"""How special characters were written: as \\xHH or with a backslash, as in JSON, or as they are."""

MISSING = "-"
"""What servers write for a value that is not there."""

REQUEST = "request"
"""The field with a request's first line, from which REQUEST_PARTS are taken."""

REQUEST_PARTS = ("request_method", "request_uri", "server_protocol")

KIND_PATTERNS = {
    # No more digits than every number of the type has: what matches can be converted.
    "int": r"\d{1,9}",
    "bigint": r"\d{1,18}",
    "double": r"\d{1,15}(?:\.\d{1,15})?",
}


class BadFormat(ValueError):
    """A format or a pattern cannot be used. `advice` says what to do."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(f"{message}. {advice}")
        self.message = message
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a line. `shown` is how the format calls it.

    `pattern` is what its values look like; empty for text of any kind. `time` names the way in which a time
    is written (`times.py`).
    """

    name: str
    kind: Kind = "text"
    shown: str = ""
    pattern: str = ""
    time: str = ""


Element: TypeAlias = Field | str
"""A part of a log format: a field, or the text between fields."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How lines become columns.

    `pieces` are the parts of the first pattern with what each expects, in words; they tell where a line stops
    to match. They are empty if the pattern cannot be divided.
    """

    name: str
    fields: tuple[Field, ...]
    patterns: tuple[str, ...]
    pieces: tuple[tuple[str, str], ...] = ()
    missing: str = MISSING
    """A value that stands for null. So does the empty text."""
    escapes: Escapes = "none"
    is_text: bool = False
    """Lines are text in UTF-8. Otherwise they are bytes, and those that are not UTF-8 stay as \\xHH."""

    @property
    def columns(self) -> tuple[Field, ...]:
        """All columns: the fields, and after a request its parts that are not fields anyway."""
        names = {field.name for field in self.fields}
        found: list[Field] = []
        for field in self.fields:
            found.append(field)
            if self.has_parts and field.name == REQUEST:
                found += [Field(name, shown=name) for name in REQUEST_PARTS if name not in names]
        return tuple(found)

    @property
    def has_parts(self) -> bool:
        """True if a field has the first line of a request."""
        return not self.is_text and any(field.name == REQUEST for field in self.fields)


def of_elements(
    name: str, elements: Sequence[Element], escapes: Escapes, *shorter: Sequence[Element]
) -> LineFormat:
    """The format of a server's log. `shorter` are other formats with fewer fields that lines may have."""
    fields = [element for element in elements if isinstance(element, Field)]
    variants = (elements, *shorter)
    patterns = [_pattern(_strict(each, escapes)) for each in variants]
    patterns += [_pattern(_lenient(each, escapes)) for each in variants]
    expected = [each.shown if isinstance(each, Field) else repr(each) for each in elements]
    pieces = tuple(zip(_strict(elements, escapes), expected, strict=True))
    return LineFormat(name, tuple(fields), tuple(dict.fromkeys(patterns)), pieces, escapes=escapes)


def named_once(elements: Iterable[Element]) -> list[Element]:
    """The elements with other names for fields that have the name of an earlier one: status, status_2."""
    counts: dict[str, int] = {}
    found: list[Element] = []
    for element in elements:
        if isinstance(element, Field):
            count = counts[element.name] = counts.get(element.name, 0) + 1
            element = element if count == 1 else replace(element, name=f"{element.name}_{count}")
        found.append(element)
    return found


def _pattern(pieces: Iterable[str]) -> str:
    return rf"(?s)\A{''.join(pieces)}\z"


def _strict(elements: Sequence[Element], escapes: Escapes) -> list[str]:
    return [
        re.escape(each) if isinstance(each, str) else _group(each, _strict_text(elements, index, escapes))
        for index, each in enumerate(elements)
    ]


def _strict_text(elements: Sequence[Element], index: int, escapes: Escapes) -> str:
    """What a text at this place looks like."""
    if index + 1 == len(elements):
        return ".*"
    after = elements[index + 1]
    if isinstance(after, Field):
        return ".*?"
    if _is_quoted(elements, index) and escapes != "none":
        return r'[^"\\]*(?:\\.[^"\\]*)*'
    return f"[^{re.escape(after[0])}]*"


def _lenient(elements: Sequence[Element], escapes: Escapes) -> list[str]:
    """As `_strict`, for texts that are not in quotes and have the character that follows them."""
    strict = _strict(elements, escapes)
    return [
        strict[index] if isinstance(each, str) or _is_quoted(elements, index) else _group(each, ".*?")
        for index, each in enumerate(elements)
    ]


def _is_quoted(elements: Sequence[Element], index: int) -> bool:
    around = elements[index - 1 : index] or [""], elements[index + 1 : index + 2] or [""]
    (before,), (after,) = around
    return isinstance(before, str) and before.endswith('"') and isinstance(after, str) and after[:1] == '"'


def _group(field: Field, text: str) -> str:
    pattern = field.pattern or KIND_PATTERNS.get(field.kind, "")
    return f"(?P<{field.name}>{f'{MISSING}|{pattern}' if pattern else text})"
