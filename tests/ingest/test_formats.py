from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.ingest.formats import BadLine, Row, csv_rows, inferred, json_rows, milliseconds
from klamm.ingest.pacing import at_rate, at_speed, unpaced
from klamm.ingest.progress import Progress, Rates, size_text, summary


def test_json_lines_are_sent_as_they_stand() -> None:
    lines = [b'{"id": 7,  "at": "2026-01-02T03:04:05Z"}\r\n', b"\n", b'{"id": "\xc3\xa4", "at": 1.5}']
    assert list(json_rows(lines, key="id", time="at")) == [
        Row(1, b'{"id": 7,  "at": "2026-01-02T03:04:05Z"}', b"7", 1_767_323_045_000),
        Row(3, b'{"id": "\xc3\xa4", "at": 1.5}', "ä".encode(), 1500),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{oops", "not JSON"),
        (b"[1]", "not a JSON object, but a list"),
        (b'{"other": 1}', "no field 'id'"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b'{"id": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"id": "' + b"x" * 1_000_000, "longer than 1,000,000 bytes"),
    ],
)
def test_bad_json_lines_are_told_by_number_and_the_rest_is_read(line: bytes, reason: str) -> None:
    bad, good = json_rows([line, b'{"id": null}'], key="id")
    assert isinstance(bad, BadLine) and bad.line == 1 and reason in bad.reason
    assert good == Row(2, b'{"id": null}', None, None)


def test_a_csv_file_without_the_wanted_column_is_told_by_its_header() -> None:
    (told,) = csv_rows(["name,n\r\n", "Ann,1\r\n", "Bob,2\r\n"], key="id")
    assert told == BadLine(1, "the header has no 'id', only name, n")


def test_csv_rows_become_objects() -> None:
    lines = ["name,note,n\r\n", 'Ann,"says ""hi""\n', 'twice",1\r\n', "\r\n", "Bob,,007\r\n"]
    rows = list(csv_rows(lines, key="name"))
    assert [(row.line, row.key, json.loads(row.value)) for row in rows if isinstance(row, Row)] == [
        (2, b"Ann", {"name": "Ann", "note": 'says "hi"\ntwice', "n": "1"}),
        (5, b"Bob", {"name": "Bob", "note": "", "n": "007"}),
    ]
    (typed,) = csv_rows(["a;b;c;d\n", "1;;2.5;true\n"], delimiter=";", infers_types=True)
    assert isinstance(typed, Row) and typed.value == b'{"a":1,"b":null,"c":2.5,"d":true}'


def test_bad_csv_rows() -> None:
    lines = ["a,b\n", "1,2,3\n", '"x"y,2\n', "\udcff,2\n", "1,2\n"]
    *bad, good = csv_rows(lines)
    assert [(one.line, one.reason) for one in bad if isinstance(one, BadLine)] == [
        (2, "it has 3 fields, but the header has 2"),
        (3, "',' expected after '\"'"),
        (4, "it is not UTF-8"),
    ]
    assert good == Row(5, b'{"a":"1","b":"2"}', None, None)
    assert list(csv_rows([])) == []


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_inferred(number: float) -> None:
    assert inferred(json.dumps(number)) == number


@pytest.mark.parametrize(
    "text", ["007", "+1", "1.", ".5", "nan", "inf", "1_000", "True", " 1", "0x10", "1\n", "1e400", "9" * 5000]
)
def test_what_is_not_exactly_a_number_stays_a_text(text: str) -> None:
    assert inferred(text) == text


def test_a_header_that_names_a_column_twice_is_told() -> None:
    assert list(csv_rows(["a,b,a\n", "1,2,3\n"])) == [BadLine(1, "the header has 'a' twice")]


@pytest.mark.parametrize("wrong", [1e400, 2**63, -(2**70), "1e400", float("nan")])
def test_times_that_no_record_holds_are_told(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a valid time"):
        milliseconds(wrong)


def test_times() -> None:
    assert milliseconds(1_767_323_045) == milliseconds("1767323045") == 1_767_323_045_000
    assert (
        milliseconds(1_767_323_045_123) == milliseconds("2026-01-02T03:04:05.123+00:00") == 1_767_323_045_123
    )
    assert milliseconds("2026-01-02T04:04:05.123+01:00") == milliseconds("2026-01-02 03:04:05.123")
    for wrong in ("yesterday", "", True, None, [], -5, "1950-01-01"):
        with pytest.raises(ValueError, match="time"):
            milliseconds(wrong)


def test_paces() -> None:
    assert unpaced(10**9, None) == 0
    assert [at_rate(100)(index, None) for index in (0, 50, 100)] == [0, 0.5, 1]
    double = at_speed(2)
    assert [double(0, moment) for moment in (5000, 9000, 4000)] == [0, 2, -0.5]


def test_the_lines_that_tell_how_it_goes() -> None:
    rates = Rates(100.0)
    progress = Progress(
        records=3_000_000, bytes=600_000_000, acknowledged=2_999_000, files=2, behind_bytes=1500
    )
    assert rates.line(progress, 102.0) == (
        "3,000,000 lines · 1.50 M lines/s · 300.0 MB/s · 2 files · 1.5 KB behind · 1,000 not acknowledged"
    )
    progress.records, progress.acknowledged = 3_000_010, 3_000_010
    assert "10 lines/s · 0.0 MB/s" in rates.line(progress, 103.0)
    progress.cut_lines = 4
    assert summary(progress, 2.0) == (
        "3,000,010 lines (600.0 MB) in 2.0 s, 300.0 MB/s; 4 cut because they were too long"
    )
    assert [size_text(size) for size in (0, 999, 1_000_000, 2.5e12)] == ["0 B", "999 B", "1.0 MB", "2.5 TB"]
