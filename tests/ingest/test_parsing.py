"""Lines as JSON records, by their format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from typer.testing import Result

import klamm.testing
from klamm.ingest.lines import LineRules
from klamm.ingest.parsing import json_records
from klamm.lineformats.nginx import nginx_format
from klamm.lineformats.regex import regex_format
from tests.ingest.test_commands import complaint, ingest
from tests.ingest.topics import Tails, records

__all__ = ["ingest"]

LINE = b'10.0.0.1 - - [31/Jan/2026:12:00:05 +0100] "GET /%s HTTP/1.1" 200 0 "-" "-"'
PARSED = {
    "remote_addr": "10.0.0.1",
    "remote_user": None,
    "time_local": "2026-01-31T11:00:05Z",
    "request": "GET /%s HTTP/1.1",
    "request_method": "GET",
    "request_uri": "/%s",
    "server_protocol": "HTTP/1.1",
    "status": 200,
    "body_bytes_sent": 0,
    "http_referer": None,
    "http_user_agent": None,
}


def test_lines_become_json_objects() -> None:
    odd = LINE % rb"\x22\x00\x5C\xC3\xA4" + b"\n"
    lines = pyarrow.array([LINE, odd, b"nonsense", LINE.replace(b"200", b"000")], pyarrow.binary())
    values, reasons = json_records(nginx_format("$remote_addr - $request_time $msec"), lines[:0], 100)
    assert (len(values), len(reasons)) == (0, 0)
    values, reasons = json_records(nginx_format(), lines, 10_000)
    assert json.loads(values[0].as_py()) == PARSED
    assert json.loads(values[1].as_py())["request_uri"] == '/"\0\\ä'
    assert values[2].as_py() == b"nonsense"
    assert reasons.to_pylist() == [None, None, "the line ends at character 8, where ' - ' is expected", None]
    assert json.loads(values[3].as_py())["status"] == 0

    precise = pyarrow.array([b"1769857205.250 0.031", b"- -"], pyarrow.binary())
    values, _ = json_records(nginx_format("$msec $request_time"), precise, 10_000)
    assert values.to_pylist() == [
        b'{"msec":"2026-01-31T11:00:05.250000Z","request_time":0.031}',
        b'{"msec":null,"request_time":null}',
    ]


def test_json_that_is_too_long_for_a_record_is_not_made() -> None:
    lines = pyarrow.array([b"a b", b"a " + b"b" * 20], pyarrow.binary())
    values, reasons = json_records(regex_format("(?P<one>.) (?P<more>.*)"), lines, 30)
    assert values.to_pylist() == [b'{"one":"a","more":"b"}', b"a " + b"b" * 20]
    assert reasons.to_pylist() == [None, "its JSON is longer than 30 bytes"]


def test_a_tail_sends_json_and_other_lines_as_they_are(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\n".join([LINE % b"a", b"odd", LINE % b"b", b"", b"odder\n"]))
    progress = tails.once(parses=nginx_format(), keyed=True)
    assert (progress.acknowledged, progress.unparsed_lines) == (5, 3)
    first, odd, second, empty, odder = tails.values()
    assert [json.loads(value)["request_uri"] for value in (first, second)] == ["/a", "/b"]
    assert [odd, empty, odder] == [b"odd", b"", b"odder"]
    headers = records(tails.bootstrap, tails.topic).column("headers").to_pylist()
    why = "the line ends at character {}, where ' - ' is expected"
    assert [[(each["key"], each["value"].decode()) for each in those] for those in headers] == [
        [],
        [("klamm.unparsed", why.format(3))],
        [],
        [("klamm.unparsed", "the line is empty")],
        [("klamm.unparsed", why.format(5))],
    ]


def test_json_that_is_larger_than_its_lines_arrives_whole(tails: Tails, tmp_path: Path) -> None:
    """A block of lines may become more than one batch of records."""
    lines = [LINE % b"%d" % number for number in range(15_000)]
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in lines))
    assert tails.once(parses=nginx_format(), keyed=True).acknowledged == 15_000
    found = [json.loads(value)["request_uri"] for value in tails.values()]
    assert found == [f"/{number}" for number in range(15_000)]


def test_origins_and_reasons_are_both_headers(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x 1\nodd\nx 2\n")
    tails.once(parses=regex_format("x (?P<n>.)"), keyed=True, with_origin=True, rules=LineRules(100))
    assert tails.values() == [b'{"n":"1"}', b"odd", b'{"n":"2"}']
    headers = records(tails.bootstrap, tails.topic).column("headers").to_pylist()
    assert [[each["key"] for each in those] for those in headers] == [
        ["klamm.file", "klamm.file.offset"],
        ["klamm.file", "klamm.file.offset", "klamm.unparsed"],
        ["klamm.file", "klamm.file.offset"],
    ]
    assert [those[1]["value"] for those in headers] == [b"0", b"4", b"8"]


def test_the_command(
    ingest: Callable[..., Result],
    klamm_session: klamm.testing.Broker,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "a.log").write_bytes(b"10.0.0.1 200\nodd\n")
    words = ("tail", "*.log", "--topic", topic, "--once", "-o", "json")
    assert "--parse nginx or --parse apache" in complaint(ingest(*words, "--log-format", "$status"))
    assert "Give both, or none" in complaint(ingest(*words, "--parse", "regex"))
    assert "Give both, or none" in complaint(ingest(*words, "--parse", "nginx", "--pattern", "(?P<a>.)"))
    assert "has no variable" in complaint(ingest(*words, "--parse", "nginx", "--log-format", "x"))
    assert "not a valid regular" in complaint(ingest(*words, "--parse", "regex", "--pattern", "(?P<a>"))
    done = ingest(*words, "--parse", "apache", "--log-format", "%a %s")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["unparsed_lines"] == 1
    assert "a.log: a line is sent as it is: the line ends at character 3, where ' ' is" in caplog.text
    assert "1 did not fit --parse and were sent as they are" in done.stderr.splitlines()[-1]
