"""Filters of records: a text such as `customer.city = "Bern" and amount > 100`, parsed.

    timeout                    the text is in the key, the value or a header, in any case
    "out of stock"             the same, for a text with spaces
    key = 42                   the key is this text; also != and ~ (has this text in it)
    value ~ refused            the value has this text in it
    header trace               there is a header of this name
    header trace = 7           with this value; names with spaces are quoted: header "my name"
    customer.city = "Bern"     a field of a value that is JSON: = != < <= > >= and ~
    items[0].price > 10        an element of a list; items[*].price means any of them
    .key = 1                   a field whose name is one of ours; key.id = 1 is a field of a key that is JSON
    partition = 3  offset >= 7 where the record lies
    paid                       a single word is a text, not a field
    a b    a and b    a or b    not a    ( )

A number without quotes equals a number and a text of these characters; a text in quotes equals only a text.
`<` and `>` compare numbers with numbers and texts with texts, so times in ISO format can be compared. A
comparison is false if the record has no such field. A core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from klamm.operating.errors import CannotDo

MOST_CHARACTERS = 4_000
"""The longest filter: it is a part of a URL."""

MOST_DEPTH = 50
"""The most parentheses and `not` inside one another."""

ANY = "*"
"""The step of a path that means any element of a list."""

OPERATORS = ("=", "!=", "<=", ">=", "<", ">", "~")
_PLACES = ("partition", "offset")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<operator><=|>=|!=|==|=|<|>|~)
    | (?P<mark>[()])
    | (?P<word>(?:[^\s"'()=<>!~]|!(?!=))+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9}|\*)\]|\.(?=\[)")


class Path(NamedTuple):
    """A field of a JSON document: its names, numbers of elements, and ANY."""

    steps: tuple[str | int, ...]
    of_key: bool = False

    def __str__(self) -> str:
        return "".join(
            f"[{each}]" if each == ANY or isinstance(each, int) else f".{each}" for each in self.steps
        )


Scalar: TypeAlias = str | float | int | bool | None


class Literal(NamedTuple):
    """What is compared with: the text as it was written, and the value that it means."""

    text: str
    value: Scalar
    is_quoted: bool = False


@dataclass(frozen=True)
class Text:
    """The text is in the key, the value or a header."""

    text: str


@dataclass(frozen=True)
class Whole:
    """The key, or the value, as a text: `part` is "key" or "value"."""

    part: str
    operator: str
    literal: Literal


@dataclass(frozen=True)
class Header:
    """There is a header of this name; with an operator, one with such a value."""

    name: str
    operator: str = ""
    literal: Literal | None = None


@dataclass(frozen=True)
class Place:
    """The partition or the offset: `part` says which."""

    part: str
    operator: str
    number: int


@dataclass(frozen=True)
class Field:
    path: Path
    operator: str
    literal: Literal


@dataclass(frozen=True)
class Not:
    term: Term


@dataclass(frozen=True)
class Every:
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Some:
    terms: tuple[Term, ...]


Term: TypeAlias = Text | Whole | Header | Place | Field | Not | Every | Some


def parse_filter(text: str) -> Term | None:
    """None for an empty text, which all records pass. Raises CannotDo, and says where the text is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise CannotDo(f"the filter has {len(text):,} characters: at most {MOST_CHARACTERS:,} are read")
    parser = _Parser(text)
    if parser.peek() is None:
        return None
    term = parser.some(0)
    if (rest := parser.peek()) is not None:
        raise parser.wrong(rest, "nothing, or `and`")
    return term


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def literal(self) -> Literal:
        if self.kind == "quoted":
            unquoted = re.sub(r"\\(.)", r"\1", self.text[1:-1], flags=re.DOTALL)
            return Literal(unquoted, unquoted, is_quoted=True)
        return Literal(self.text, _meaning(self.text))


def _meaning(word: str) -> Scalar:
    """What a word without quotes means, as in JSON: a number, true, false, null, or itself."""
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    if _NUMBER.fullmatch(word):
        return float(word)
    return word


_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}
_INTEGER = re.compile(r"-?\d{1,30}")
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?([eE][+-]?\d{1,3})?")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut(text))
        self._next = 0

    def _cut(self, text: str) -> Iterator[_Token]:
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                left = text[at:].lstrip()
                missing = "the quote is not closed" if left[0] in "\"'" else f"{left[0]!r} is not expected"
                raise CannotDo(f"the filter is not valid: {missing} at {left[:20]!r}")
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()

    def peek(self, ahead: int = 0) -> _Token | None:
        at = self._next + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def take(self) -> _Token:
        token = self.peek()
        if token is None:
            raise CannotDo(f"the filter is not complete: something is missing after {self._text[-20:]!r}")
        self._next += 1
        return token

    def wrong(self, token: _Token, expected: str) -> CannotDo:
        return CannotDo(f"the filter is not valid at {self._text[token.at :][:20]!r}: expected {expected}")

    def is_word(self, *words: str, ahead: int = 0) -> bool:
        token = self.peek(ahead)
        return token is not None and token.kind == "word" and token.text.lower() in words

    def some(self, depth: int) -> Term:
        terms = [self.every(depth)]
        while self.is_word("or"):
            self.take()
            terms.append(self.every(depth))
        return terms[0] if len(terms) == 1 else Some(tuple(terms))

    def every(self, depth: int) -> Term:
        terms = [self.single(depth)]
        while (token := self.peek()) is not None and token.text != ")" and not self.is_word("or"):
            if self.is_word("and"):
                self.take()
            terms.append(self.single(depth))
        return terms[0] if len(terms) == 1 else Every(tuple(terms))

    def single(self, depth: int) -> Term:
        if depth > MOST_DEPTH:
            raise CannotDo(f"the filter has more than {MOST_DEPTH} parentheses inside one another")
        token = self.take()
        if token.text == "(":
            inner = self.some(depth + 1)
            closing = self.take()
            if closing.text != ")":
                raise self.wrong(closing, "a closing parenthesis")
            return inner
        if token.kind in ("operator", "mark") or (
            token.kind == "word" and token.text.lower() in ("and", "or")
        ):
            raise self.wrong(token, "a text, a field, key, value or header")
        if token.kind == "word" and token.text.lower() == "not" and self.peek() is not None:
            return Not(self.single(depth + 1))
        if token.kind == "word" and token.text == "header" and self._names_header():
            return self.header()
        if self._operator_follows():
            return self.comparison(token)
        return Text(token.literal.text)

    def header(self) -> Term:
        name = self.take().literal.text
        if self._operator_follows():
            return Header(name, self.operator(), self.value())
        return Header(name)

    def comparison(self, token: _Token) -> Term:
        operator = self.operator()
        literal = self.value()
        if token.kind == "word":
            if token.text in ("key", "value"):
                if operator not in ("=", "!=", "~"):
                    raise self.wrong(token, f"= or != or ~ after {token.text}, or a field: {token.text}.name")
                return Whole(token.text, operator, literal)
            if token.text in _PLACES:
                if not isinstance(literal.value, int) or isinstance(literal.value, bool) or operator == "~":
                    raise self.wrong(token, f"a number to compare the {token.text} with")
                return Place(token.text, operator, literal.value)
        return Field(self.path(token), operator, literal)

    def path(self, token: _Token) -> Path:
        if token.kind == "quoted":
            return Path((token.literal.text,))
        steps: list[str | int] = []
        at = 0
        while at < len(token.text):
            step = _STEP.match(token.text, at)
            if step is None:
                raise self.wrong(token, "a field such as customer.city or items[0].price")
            if step[1] is not None:
                steps.append(step[1])
            elif step[2] is not None:
                steps.append(ANY if step[2] == ANY else int(step[2]))
            at = step.end()
        if not steps:
            raise self.wrong(token, "the name of a field")
        if len(steps) > 1 and steps[0] in ("key", "value") and not token.text.startswith("."):
            return Path(tuple(steps[1:]), of_key=steps[0] == "key")
        return Path(tuple(steps))

    def operator(self) -> str:
        text = self.take().text
        return "=" if text == "==" else text

    def value(self) -> Literal:
        token = self.take()
        if token.kind not in ("word", "quoted"):
            raise self.wrong(token, "a value to compare with")
        return token.literal

    def _operator_follows(self) -> bool:
        token = self.peek()
        return token is not None and token.kind == "operator"

    def _names_header(self) -> bool:
        token = self.peek()
        return token is not None and token.kind in ("word", "quoted") and not self.is_word("and", "or")
