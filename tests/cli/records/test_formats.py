"""How records are written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from klamm.cli.errors import CommandError
from klamm.cli.records.formats import renderer
from klamm.cli.records.producing import LineRules, Stream, records_of_json, records_of_lines, split
from klamm.client.results import Record
from klamm.operating.records.as_json import as_json, json_lines

RECORD = Record("orders", 2, 7, 1767261600123, b"k%d", b"v\xff", (("a", b"1"), ("b", None)))
EMPTY = Record("orders", 0, 8, -1, None, None)


@pytest.mark.parametrize(
    ("format_", "expected"),
    [
        ("%v", b"v\xff\n\n"),
        ("%s\\0", b"v\xff\0\0"),
        ("%t %p %o %k %v", b"orders 2 7 k%d v\xff\norders 0 8  \n"),
        ("%o%%\\t%T", b"7%\t1767261600123\n8%\t-1\n"),
        ("%K/%V/%S", b"3/2/2\n-1/-1/-1\n"),
        ("%h|%d", b"a=1,b=|2026-01-01T10:00:00.123Z\n|-\n"),
        ("x\\x25\\x41\\n", b"x%A\nx%A\n"),
    ],
)
def test_formats(format_: str, expected: bytes) -> None:
    assert renderer(format_)([RECORD, EMPTY]) == expected


@pytest.mark.parametrize("format_", ["%q", "%", "\\q", "a\\"])
def test_unknown_directives_are_refused(format_: str) -> None:
    with pytest.raises(CommandError, match="in the format is not known: there are"):
        renderer(format_)


def test_json_comes_back_as_the_record_that_it_was() -> None:
    lines = json_lines([RECORD, EMPTY]).splitlines()
    found = [json.loads(line) for line in lines]
    assert found == [as_json(RECORD), as_json(EMPTY)]
    assert found[0]["value_base64"] == "dv8=" and found[0]["key"] == "k%d" and found[1]["value"] is None
    first, second = records_of_json(lines, LineRules())
    assert (first.key, first.value, first.timestamp) == (RECORD.key, RECORD.value, RECORD.timestamp)
    assert first.headers == (("a", b"1"), ("b", b""))
    assert (second.key, second.value) == (None, None)


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"value_base64": "?"}', b'{"headers": [{"x": 1}]}'])
def test_a_line_that_is_not_a_record_is_named(line: bytes) -> None:
    with pytest.raises(CommandError, match="line 2 is not a record as JSON"):
        list(records_of_json([b'{"value": {"n": 1}}', line], LineRules()))


def test_lines_become_records() -> None:
    pieces = [b"a:1\nb", b":2\n\nc:", b"3", b""]
    stream = SimpleNamespace(read1=lambda size: pieces.pop(0))
    lines = list(split(cast(Stream, stream), b"\n"))
    assert lines == [b"a:1", b"b:2", b"", b"c:3"]
    assert [each.value for each in records_of_lines(lines, LineRules(key=b"k"))] == lines
    keyed = records_of_lines([b"a:1:2", b"b:"], LineRules(key_delimiter=b":", empty_is_null=True))
    assert [(each.key, each.value) for each in keyed] == [(b"a", b"1:2"), (b"b", None)]
    with pytest.raises(CommandError, match="line 3 has no ':' between key and value: ''"):
        list(records_of_lines(lines, LineRules(key_delimiter=b":")))
