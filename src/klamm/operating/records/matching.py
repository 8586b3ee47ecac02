"""Whether a record passes a filter (`filters.py`). A core.

A search passes millions of records, so a record is decoded only if it must be: texts are looked for in the
bytes, and a value that does not have the name of a field in its bytes is not parsed as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from klamm.client.results import Record
from klamm.operating.records.filters import (
    ANY,
    Every,
    Field,
    Header,
    Literal,
    Not,
    Path,
    Place,
    Some,
    Term,
    Text,
    Whole,
)

Decode = Callable[[bytes], Any]
"""From a value to a document of dicts, lists and scalars. Raises any exception for a value that is none."""

MOST_ELEMENTS = 100_000
"""How many elements of lists one comparison looks at, in one record."""


class _Nothing:
    """The document of a key or a value that cannot be decoded."""


_NOTHING = _Nothing()


class Subject:
    """A record, with the documents in its key and value decoded when they are first needed."""

    __slots__ = ("_decode", "_key", "_value", "record")

    def __init__(self, record: Record, decode: Decode | None) -> None:
        self.record = record
        self._decode = decode
        self._key: Any = None
        self._value: Any = None

    def document(self, of_key: bool) -> Any:
        if of_key:
            if self._key is None:
                self._key = _decoded(self.record.key, parse_json)
            return self._key
        if self._value is None:
            self._value = _decoded(self.record.value, self._decode or parse_json)
        return self._value


class Matcher:
    """Tells which records pass. `decode` is for values that are not JSON."""

    def __init__(self, term: Term | None, decode: Decode | None = None) -> None:
        self._decode = decode
        self._passes = None if term is None else _predicate(term, is_json=decode is None)

    def __call__(self, record: Record) -> bool:
        return self._passes is None or self._passes(Subject(record, self._decode))


def parse_json(data: bytes) -> Any:
    return json.loads(data)


def _decoded(data: bytes | None, decode: Decode) -> Any:
    if data is None:
        return _NOTHING
    try:
        document = decode(data)
    except Exception:  # decoders raise errors of any type on bytes that do not fit
        return _NOTHING
    return _NULL if document is None else document


class _Null:
    """A document that is null. None is what has not been decoded yet."""


_NULL = _Null()

Predicate = Callable[[Subject], bool]


def _predicate(term: Term, *, is_json: bool) -> Predicate:
    match term:
        case Text(text):
            return _text(text)
        case Whole(part, operator, literal):
            return _whole(part, operator, literal)
        case Header(name, operator, literal):
            return _header(name, operator, literal)
        case Place(part, operator, number):
            return _place(part, operator, number)
        case Field():
            return _field(term, is_json=is_json)
        case Not(inner):
            refused = _predicate(inner, is_json=is_json)
            return lambda subject: not refused(subject)
        case Every(terms):
            every = [_predicate(each, is_json=is_json) for each in terms]
            return lambda subject: all(each(subject) for each in every)
        case Some(terms):
            some = [_predicate(each, is_json=is_json) for each in terms]
            return lambda subject: any(each(subject) for each in some)


def _text(text: str) -> Predicate:
    has = finder(text)

    def passes(subject: Subject) -> bool:
        record = subject.record
        if (record.value is not None and has(record.value)) or (record.key is not None and has(record.key)):
            return True
        return any(
            has(name.encode(errors="surrogateescape")) or (value is not None and has(value))
            for name, value in record.headers
        )

    return passes


def finder(text: str) -> Callable[[bytes], bool]:
    """Whether bytes have a text in them, in any case. JSON may have escaped what is not ASCII, so both ways
    of writing are looked for."""
    if text.isascii():
        needle = text.lower().encode()
        return lambda data: needle in data.lower()
    folded = text.casefold()
    escaped = json.dumps(text.lower())[1:-1].lower().encode()

    def has(data: bytes) -> bool:
        return folded in data.decode(errors="replace").casefold() or escaped in data.lower()

    return has


def _whole(part: str, operator: str, literal: Literal) -> Predicate:
    is_key = part == "key"
    if operator == "~":
        has = finder(literal.text)

        def contains(subject: Subject) -> bool:
            data = subject.record.key if is_key else subject.record.value
            return data is not None and has(data)

        return contains
    wanted = None if literal.value is None and not literal.is_quoted else literal.text.encode()
    is_equal = operator == "="

    def compares(subject: Subject) -> bool:
        return ((subject.record.key if is_key else subject.record.value) == wanted) is is_equal

    return compares


def _header(name: str, operator: str, literal: Literal | None) -> Predicate:
    if literal is None:
        return lambda subject: any(each == name for each, _ in subject.record.headers)
    compare = comparison(operator, literal)

    def passes(subject: Subject) -> bool:
        return any(
            each == name and value is not None and compare(value.decode(errors="replace"))
            for each, value in subject.record.headers
        )

    return passes


def _place(part: str, operator: str, number: int) -> Predicate:
    compare = comparison(operator, Literal(str(number), number))
    if part == "partition":
        return lambda subject: compare(subject.record.partition)
    return lambda subject: compare(subject.record.offset)


def _field(field: Field, *, is_json: bool) -> Predicate:
    compare = comparison(field.operator, field.literal)
    path, of_key = field.path.steps, field.path.of_key
    names = [each.encode() for each in path if isinstance(each, str) and each != ANY and _is_plain(each)]

    def passes(subject: Subject) -> bool:
        if is_json or of_key:
            data = subject.record.key if of_key else subject.record.value
            if data is None or (any(name not in data for name in names) and b"\\u" not in data):
                return False
        return any(compare(each) for each in values_at(subject.document(of_key), path))

    return passes


def _is_plain(name: str) -> bool:
    """True for names that JSON writes as they are, or with \\u."""
    return name.isascii() and name.isprintable() and not set(name) & set('"\\/')


def values_at(document: Any, path: tuple[str | int, ...]) -> Iterator[Any]:
    """The values at a path; several if it has ANY in it."""
    left = [MOST_ELEMENTS]
    yield from _values_at(None if isinstance(document, _Null) else document, path, left)


def _values_at(document: Any, path: tuple[str | int, ...], left: list[int]) -> Iterator[Any]:
    for number, step in enumerate(path):
        if step == ANY and isinstance(document, list):
            for each in document:
                left[0] -= 1
                if left[0] < 0:
                    return
                yield from _values_at(each, path[number + 1 :], left)
            return
        if isinstance(step, int):
            if not isinstance(document, list) or step >= len(document):
                return
            document = document[step]
        else:
            if not isinstance(document, dict) or step not in document:
                return
            document = document[step]
    if not isinstance(document, _Nothing):
        yield document


def comparison(operator: str, literal: Literal) -> Callable[[Any], bool]:
    """Compares a value of a document with a literal."""
    if operator == "~":
        folded = literal.text.casefold()
        return lambda value: folded in text_of(value).casefold()
    if operator == "=":
        return lambda value: _equals(value, literal)
    if operator == "!=":
        return lambda value: not _equals(value, literal)
    return lambda value: _is_ordered(value, operator, literal)


def text_of(value: Any) -> str:
    """A value of a document as a text: texts are themselves, all else is JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _equals(value: Any, literal: Literal) -> bool:
    wanted = literal.value
    if literal.is_quoted or isinstance(value, str):
        return isinstance(value, str) and value == literal.text
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None or wanted is None:
        return value is wanted
    return isinstance(value, int | float) and isinstance(wanted, int | float) and value == wanted


def _is_ordered(value: Any, operator: str, literal: Literal) -> bool:
    wanted = literal.value
    if isinstance(value, str):
        if not literal.is_quoted and _is_number(wanted):
            number = _as_number(value)  # a header, or a number that was written as a text
            return number is not None and _ordered(number, operator, wanted)
        return _ordered(value, operator, literal.text)
    return (
        _is_number(value)
        and not literal.is_quoted
        and _is_number(wanted)
        and _ordered(value, operator, wanted)
    )


def _ordered(value: Any, operator: str, wanted: Any) -> bool:
    match operator:
        case "<":
            return bool(value < wanted)
        case "<=":
            return bool(value <= wanted)
        case ">":
            return bool(value > wanted)
    return bool(value >= wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_number(text: str) -> float | None:
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None


__all__ = ["Decode", "Matcher", "Path", "comparison", "finder", "parse_json", "text_of", "values_at"]
