"""The formats of nginx and Apache, as their configurations have them, and lines as the servers write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from klamm.lineformats.apache import apache_format
from klamm.lineformats.format import BadFormat, LineFormat
from klamm.lineformats.nginx import nginx_format
from klamm.lineformats.reading import read_lines

NOON = datetime(2026, 1, 31, 11, 0, 5, tzinfo=UTC)
TIME = "31/Jan/2026:12:00:05 +0100"


def read(line_format: LineFormat, *lines: bytes | str | None) -> list[dict[str, Any] | str | None]:
    """The columns of each line, its error, or nothing."""
    values = [line.encode() if isinstance(line, str) else line for line in lines]
    found = read_lines(line_format, pa.array(values, pa.binary()))
    assert all(len(column) == len(lines) for column in found.values.values())
    rows = [
        {name: column[number].as_py() for name, column in found.values.items()}
        for number in range(len(lines))
    ]
    errors = found.errors.to_pylist()
    return [None if line is None else errors[at] or rows[at] for at, line in enumerate(lines)]


def only(line_format: LineFormat, line: bytes | str) -> dict[str, Any]:
    (row,) = read(line_format, line)
    assert isinstance(row, dict), row
    return row


def test_nginx_combined() -> None:
    line = f'2001:db8::1 - - [{TIME}] "GET /?q=1 HTTP/1.1" 200 612 "-" "curl/8.5"\r\n'
    assert only(nginx_format(), line) == {
        "remote_addr": "2001:db8::1",
        "remote_user": None,
        "time_local": NOON,
        "request": "GET /?q=1 HTTP/1.1",
        "request_method": "GET",
        "request_uri": "/?q=1",
        "server_protocol": "HTTP/1.1",
        "status": 200,
        "body_bytes_sent": 612,
        "http_referer": None,
        "http_user_agent": "curl/8.5",
    }


def test_what_clients_send_is_taken_as_it_is() -> None:
    """Requests that are none, quotes, bytes of all kinds, names with spaces."""
    start = f"10.0.0.1 - john smith [{TIME}] "
    rows = read(
        nginx_format(),
        rf'{start}"\x16\x03\x01" 400 0 "-" "-"',
        rf'{start}"" 400 0 "-" "a \x22quoted\x22 \x5C name"',
        rf'{start}"GET /\xC3\xA4 HTTP/1.0" 200 1 "-" "\xFF"',
        f'{start}"GET /'.encode() + b'\xff HTTP/1.0" 200 1 "-" "\xe4"',
        f'{start}"GET / a b HTTP/1.0" 200 1 "-" "x"',
    )
    assert [row["remote_user"] for row in rows if isinstance(row, dict)] == ["john smith"] * 5
    picked = [
        (row["request"], row["request_uri"], row["http_user_agent"]) for row in rows if isinstance(row, dict)
    ]
    assert picked == [
        ("\x16\x03\x01", None, None),
        (None, None, 'a "quoted" \\ name'),
        ("GET /ä HTTP/1.0", "/ä", r"\xFF"),
        (r"GET /\xff HTTP/1.0", r"/\xff", r"\xe4"),
        ("GET / a b HTTP/1.0", None, "x"),
    ]


def test_nginx_log_formats_are_taken_from_the_configuration() -> None:
    directive = r"""
        log_format timed escape=json '$remote_addr:$remote_port [$time_iso8601] $msec ${request_time}s '
                                     '"$request" "$http_x_id" $upstream_response_time';
    """
    line = (
        r'::1:4711 [2026-01-31T12:00:05+01:00] 1769857205.250 0.031s "GET /\u00e4 HTTP/2.0" "\"" 0.010, 0.020'
    )
    row = only(nginx_format(directive), line)
    assert (row["remote_addr"], row["remote_port"], row["time_iso8601"]) == ("::1", 4711, NOON)
    assert row["msec"] == NOON.replace(microsecond=250_000)
    assert (row["request_time"], row["request_uri"], row["http_x_id"]) == (0.031, "/ä", '"')
    assert row["upstream_response_time"] == "0.010, 0.020"
    assert only(nginx_format("$status|$status", "none"), "200|-") == {"status": 200, "status_2": None}
    assert only(nginx_format("$scheme$host x"), "httpsa.org x") == {"scheme": None, "host": "httpsa.org"}
    assert "http_x_forwarded_for" in [each.name for each in nginx_format("main").columns]


def test_apache_combined_and_common() -> None:
    common = f'::1 - frank [{TIME}] "GET /a.gif HTTP/1.0" 200 -'
    rows = read(apache_format(), rf'{common} "http://e.org/\"x\"" "Moz\\illa\t"', common, None)
    assert [row["remote_host"] for row in rows if row] == ["::1", "::1"]  # type: ignore[index]
    first, second, nothing = rows
    assert isinstance(first, dict) and isinstance(second, dict) and nothing is None
    assert (first["http_referer"], first["http_user_agent"]) == ('http://e.org/"x"', "Moz\\illa\t")
    assert (second["time_local"], second["status"], second["body_bytes_sent"]) == (NOON, 200, None)
    assert (second["remote_user"], second["http_referer"]) == ("frank", None)


def test_apache_log_formats_are_taken_from_the_configuration() -> None:
    directive = r'LogFormat "%{c}a %v:%p \"%r\" %>s %!200{X-Id}i %D %{UNIQUE_ID}e %{ms}T %%\t%X" mine'
    row = only(apache_format(directive), '10.1.2.3 shop.org:443 "POST / HTTP/1.1" 201 a/b 1250 Q1 17 %\t+')
    assert row == {
        "peer_addr": "10.1.2.3",
        "server_name": "shop.org",
        "server_port": 443,
        "request": "POST / HTTP/1.1",
        "request_method": "POST",
        "request_uri": "/",
        "server_protocol": "HTTP/1.1",
        "status": 201,
        "http_x_id": "a/b",
        "duration_us": 1250,
        "env_unique_id": "Q1",
        "duration_ms": 17,
        "connection_status": "+",
    }
    names = [each.name for each in apache_format("vhost_combined").columns]
    assert names[:3] == ["server_name", "server_port", "remote_host"] and "bytes_sent" in names


@pytest.mark.parametrize(
    ("directive", "written"),
    [
        ("%t", f"[{TIME}]"),
        ("%{%Y-%m-%dT%H:%M:%S%z}t", "2026-01-31T12:00:05+01:00"),
        ("%{begin:%F %T}t", "2026-01-31 11:00:05"),
        ("%{%e %b %Y %T %z}t", "31 Jan 2026 06:00:05 -0500"),
        ("%{sec}t", "1769857205"),
        ("%{end:msec}t", "1769857205000"),
        ("%{usec}t", "1769857205000000"),
    ],
)
def test_times_of_apache(directive: str, written: str) -> None:
    assert only(apache_format(f"{directive} %s"), f"{written} 200")["time_local"] == NOON


def test_times_that_cannot_be_read_are_text() -> None:
    for directive, written in (("%{%A %T}t", "Saturday 12:00:05"), ("%{%Y %Y-%m-%d}t", "2026 2026-01-31")):
        assert only(apache_format(f"{directive}|%s"), f"{written}|200")["time_local"] == written


def test_lines_that_do_not_fit_say_where() -> None:
    good = f'10.0.0.1 - - [{TIME}] "GET / HTTP/1.1" 200 1 "-" "-"'
    rows = read(
        nginx_format(),
        good,
        f'{good} "10.9.9.9"',
        good.replace("200", "OK"),
        good.replace("Jan", "January"),
        good.replace("31/", "32/"),
        "10.0.0.1 - -",
        "",
        good[: good.index('"-"')],
        good.replace("200 1", "200 " + "9" * 19),
    )
    assert isinstance(rows[0], dict)
    assert rows[1:] == [
        "the line fits up to character 72, where the format ends; ' \"10.9.9.9\"' follows",
        'the line fits up to character 59: $status is expected, not \'OK 1 "-" "-"\'',
        "the line fits up to character 14: $time_local is expected, "
        "not '31/January/2026:12:00:05 +0100] \"GET / H'…",
        "$time_local is '32/Jan/2026:12:00:05 +0100', and there is no such time",
        "the line ends at character 12, where ' [' is expected",
        "the line is empty",
        "the line fits up to character 64: ' \"' is expected, not ' '",
        'the line fits up to character 81: \' "\' is expected, not \'9 "-" "-"\'',
    ]


def test_columns_can_be_chosen_and_left_as_text() -> None:
    line = f'10.0.0.1 - - [{TIME}] "GET / HTTP/1.1" 200 1 "-" "-"'.encode()
    lines = pa.array([line, None], pa.binary())
    found = read_lines(nginx_format(), lines, ["request_uri", "status", "time_local"], ["time_local"])
    assert {name: column.to_pylist() for name, column in found.values.items()} == {
        "time_local": [TIME, None],
        "request_uri": ["/", None],
        "status": [200, None],
    }
    assert found.errors.to_pylist() == [None, None]
    empty = read_lines(nginx_format(), lines[:0])
    assert {len(column) for column in empty.values.values()} == {0}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: nginx_format("combinde"), "the log_format 'combinde' has no variable.*combined, main"),
        (lambda: nginx_format("$status", "yes"), "escape='yes' is not valid. Use one of default, json, none"),
        (lambda: nginx_format("log_format x '$status' oops;"), "cannot be read at 'oops'"),
        (lambda: apache_format("commom"), "has no directive.*common, combined"),
        (lambda: apache_format("%h %Y"), "has '%Y', which is not a directive"),
        (lambda: apache_format("%{zone}p"), "has '%{zone}p', which is not a directive"),
        (lambda: apache_format("%h 100%"), "has '%', which"),
    ],
)
def test_formats_that_are_wrong(make: Any, problem: str) -> None:
    with pytest.raises(BadFormat, match=problem):
        make()
