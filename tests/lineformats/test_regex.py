"""Patterns of users: their groups are columns, and a line that does not match says where it stops to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from klamm.lineformats.format import BadFormat
from klamm.lineformats.reading import NOT_TEXT, read_lines
from klamm.lineformats.regex import regex_format

PATTERN = r"(?P<level>[A-Z]+): (?:\[(?P<id>\d{2,})\] )?(?P<text>.*)"


def test_groups_become_columns_of_text() -> None:
    lines = pa.array([b"INFO: [17] a \xe2\x82\xac\n", b"WARN: b\r\n", None, b"WARN: -"], pa.binary())
    found = read_lines(regex_format(PATTERN), lines)
    assert {name: column.to_pylist() for name, column in found.values.items()} == {
        "level": ["INFO", "WARN", None, "WARN"],
        "id": ["17", None, None, None],
        "text": ["a €", "b", None, "-"],
    }
    assert found.errors.null_count == 4


def test_lines_that_do_not_match_say_where() -> None:
    lines = pa.array([b"info: x", b"INFO", b"INFO:x", b"\xff", b"INFO: ok"], pa.binary())
    found = read_lines(regex_format(PATTERN), lines)
    assert found.errors.to_pylist() == [
        "the line does not fit from its beginning on: (?P<level>[A-Z]+) is expected, not 'info: x'",
        "the line ends at character 4, where :  is expected",
        "the line fits up to character 4: :  is expected, not ':x'",
        NOT_TEXT,
        None,
    ]


@pytest.mark.parametrize(
    ("pattern", "line", "reason"),
    [
        (r"(?P<a>[])(]+)x\(\p{L}{2}y", "()]x(öäz", "fits up to character 7: y is expected, not 'z'"),
        (r"(?P<a>(?:(?:\)|[)]){2})+?)[[:digit:]x]b", "))qb", "to character 2: [[:digit:]x] is expected"),
        (r"(?i)(?P<a>\x41+)\x{42}{2,3}?", "aabc", "fits up to character 2: \\x{42}{2,3}? is expected"),
        (r"(?P<a>\d)a|(?P<b>\d)b", "1c", "the line does not match the pattern"),
        (r"(?P<a>.)a{,1}b", "xa{,1}c", "b is expected, not 'c'"),
        (r"(?P<a>\d+)", "17 ", "fits up to character 2, where the format ends; ' ' follows"),
        (r"^(?P<a>\d+)$", "17 ", "fits up to character 2: $ is expected, not ' '"),
    ],
)
def test_patterns_of_all_kinds_are_divided(pattern: str, line: str, reason: str) -> None:
    found = read_lines(regex_format(pattern), pa.array([line]))
    assert reason in found.errors[0].as_py()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?P<a>x", "is not a valid regular expression: .*missing.*without look-ahead"),
        (r"(?P<a>x)(?=y)", "is not a valid regular expression"),
        (r"(?P<a>x)(y)", r"has a group without a name.*\(\?:…\)"),
        (r"\d+", "has no named group"),
        (r"(?P<a>x)(?P<A>y)", "two groups of the pattern are called a"),
        (r"(?P<a>x)(?P<a>y)", "two groups of the pattern are called a|is not a valid regular expression"),
    ],
)
def test_patterns_that_are_wrong(pattern: str, problem: str) -> None:
    with pytest.raises(BadFormat, match=problem):
        regex_format(pattern)
