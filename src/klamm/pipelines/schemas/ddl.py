"""Parses SQL columns ("id STRING NOT NULL, tags ARRAY<STRING>") to a StructType, without a JVM.

It accepts the same column lists as Spark's own parser: `name type` and `name: type`, names in back-quotes,
NOT NULL, COMMENT, and all types that values of records can have. A test compares it with Spark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from pyspark.sql import types

from klamm.pipelines.errors import SchemaError

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_0-9]+)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<sign>[<>(),:]))"""
)

_PLAIN_TYPES: Mapping[str, Callable[[], types.DataType]] = {
    "bigint": types.LongType,
    "binary": types.BinaryType,
    "boolean": types.BooleanType,
    "byte": types.ByteType,
    "date": types.DateType,
    "double": types.DoubleType,
    "float": types.FloatType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "long": types.LongType,
    "real": types.FloatType,
    "short": types.ShortType,
    "smallint": types.ShortType,
    "string": types.StringType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "tinyint": types.ByteType,
    "variant": types.VariantType,
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_WITH_LENGTH: Mapping[str, Callable[[int], types.DataType]] = {
    "char": types.CharType,
    "varchar": types.VarcharType,
}
TYPE_NAMES = (*_PLAIN_TYPES, *_DECIMALS, *_NESTED, *_WITH_LENGTH)


def parse_ddl(text: str) -> types.StructType:
    """The columns of `text`. Raises SchemaError, which names the position of the mistake."""
    parser = _Parser(text)
    fields = parser.fields(end="")
    return types.StructType(fields)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A recursive descent parser with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._cut(text)
        self._index = 0

    def _cut(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                self._fail(at, f"unexpected {text[at]!r}", "Put names with such characters into back-quotes")
            kind = str(match.lastgroup)
            found = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
            tokens.append(_Token(kind, found, match.start(kind)))
            at = match.end()
        tokens.append(_Token("end", "", len(text)))
        return tokens

    def fields(self, end: str) -> list[types.StructField]:
        """Parse fields up to `end` (a sign, or "" for the end of the text), and `end` itself."""
        fields: list[types.StructField] = []
        names: set[str] = set()
        if end and self._take_sign(end):
            return fields
        while True:
            start = self._next()
            field = self._field()
            if field.name.lower() in names:
                self._fail(start.at, f"there are two columns {field.name}", "Rename one; case does not count")
            names.add(field.name.lower())
            fields.append(field)
            if self._take_sign(","):
                continue
            token = self._next()
            if (token.kind, token.text) == (("sign", end) if end else ("end", "")):
                self._index += 1
                return fields
            self._fail(token.at, f"{token.text or 'the end'!r} follows {field.name}", "A comma is missing")

    def _field(self) -> types.StructField:
        token = self._next()
        if token.kind not in ("name", "quoted"):
            self._fail(token.at, "the name of a column is missing", 'Write it as "id STRING, amount DOUBLE"')
        self._index += 1
        self._take_sign(":")
        data_type = self._type(token.text)
        nullable = True
        metadata = {}
        if self._take_word("not"):
            if not self._take_word("null"):
                self._fail(self._next().at, "NOT is not followed by NULL", "Write NOT NULL")
            nullable = False
        if self._take_word("comment"):
            comment = self._next()
            if comment.kind != "text":
                self._fail(comment.at, "COMMENT has no text", "Put it into single quotes")
            self._index += 1
            metadata["comment"] = re.sub(r"\\(.)", r"\1", comment.text)
        return types.StructField(token.text, data_type, nullable, metadata)

    def _type(self, column: str) -> types.DataType:
        token = self._next()
        word = token.text.lower()
        if token.kind != "name":
            self._fail(token.at, f"{column} has no type", f"Write {column} STRING, or another type")
        self._index += 1
        if (plain := _PLAIN_TYPES.get(word)) is not None:
            return plain()
        if word in _DECIMALS:
            return types.DecimalType(*(self._numbers(2) or (10, 0)))
        if (sized := _WITH_LENGTH.get(word)) is not None:
            lengths = self._numbers(1)
            if not lengths:
                self._fail(token.at, f"{word} of {column} has no length", f"Write {word}(20), or STRING")
            return sized(lengths[0])
        if word in _NESTED:
            return self._nested(word, column)
        nearest = difflib.get_close_matches(word, TYPE_NAMES, n=1)
        advice = f"Did you mean {nearest[0].upper()}?" if nearest else f"Use one of {', '.join(TYPE_NAMES)}"
        self._fail(token.at, f"{column} has the unknown type {token.text!r}", advice)

    def _nested(self, word: str, column: str) -> types.DataType:
        self._expect("<", column)
        if word == "struct":
            return types.StructType(self.fields(end=">"))
        first = self._type(column)
        if word == "array":
            self._expect(">", column)
            return types.ArrayType(first)
        self._expect(",", column)
        second = self._type(column)
        self._expect(">", column)
        return types.MapType(first, second)

    def _numbers(self, at_most: int) -> tuple[int, ...]:
        """Numbers in brackets, or an empty list."""
        if not self._take_sign("("):
            return ()
        numbers: list[int] = []
        while True:
            token = self._next()
            if not token.text.isdecimal() or len(numbers) == at_most:
                self._fail(token.at, "a number is missing here", "Write it as DECIMAL(10, 2)")
            self._index += 1
            numbers.append(int(token.text))
            if not self._take_sign(","):
                break
        self._expect(")", "the type")
        if at_most == 2 and len(numbers) == 1:
            numbers.append(0)
        if at_most == 2 and not (numbers[1] <= numbers[0] <= 38):
            self._fail(
                self._tokens[self._index - 1].at,
                f"DECIMAL({numbers[0]}, {numbers[1]}) is not valid",
                "It has at most 38 digits, and no more of them after the point than in all",
            )
        return tuple(numbers)

    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take_sign(self, sign: str) -> bool:
        if self._next().kind == "sign" and self._next().text == sign:
            self._index += 1
            return True
        return False

    def _take_word(self, word: str) -> bool:
        if self._next().kind == "name" and self._next().text.lower() == word:
            self._index += 1
            return True
        return False

    def _expect(self, sign: str, column: str) -> None:
        if not self._take_sign(sign):
            self._fail(self._next().at, f"{sign!r} is missing in the type of {column}", "Close every bracket")

    def _fail(self, at: int, message: str, advice: str) -> NoReturn:
        shown = self._text[max(0, at - 20) : at] + "⟨here⟩" + self._text[at : at + 20]
        raise SchemaError(
            f"the schema does not parse at character {at + 1} ({shown}): {message}", advice=advice
        )
