"""Writes plain values as YAML: mappings, lists, texts, numbers and booleans. A core."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value]"

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
# Characters that YAML wants escaped, or takes for the end of a line.
_ESCAPED = "\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff"
_TO_ESCAPE = re.compile(f"[{_ESCAPED}]")
# A block keeps all other texts as they are, unless they begin or end with an empty line.
_NOT_IN_BLOCKS = re.compile(rf"[\x00-\x08\x0b-\x1f{_ESCAPED}]|\A\n|\n\n\Z")


def documents(values: Sequence[Mapping[str, Value]]) -> str:
    """The values as documents of one file."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(value)) for value in values)


def _lines(value: Value) -> Iterator[str]:
    if not _is_nested(value):
        yield from _scalar_lines(value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _labelled(f"{_scalar(key)}:", each)
    elif isinstance(value, Sequence):
        for each in value:
            first, *others = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in others)


def _labelled(label: str, value: Value) -> Iterator[str]:
    if _is_nested(value):
        yield label
        yield from (f"  {line}" if line else "" for line in _lines(value))
    else:
        first, *others = _scalar_lines(value)
        yield f"{label} {first}"
        yield from (f"  {line}" if line else "" for line in others)


def _is_nested(value: Value) -> bool:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, str) and bool(value)


def _scalar_lines(value: Value) -> list[str]:
    """A text of several lines as a block, with its lines as they are."""
    if isinstance(value, str) and "\n" in value and not _NOT_IN_BLOCKS.search(value):
        end = "" if value.endswith("\n") else "-"
        return [f"|2{end}", *value.removesuffix("\n").split("\n")]
    return [_scalar(value)]


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
