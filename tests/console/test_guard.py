"""Who may read and act: logins, origins, host names, headers. By HTTP and by a raw web socket."""

from __future__ import annotations

import base64
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.commands import complaint
from tests.console.running import RunningConsole, console_of

from klamm.console.guard import passwords
from klamm.console.guard.origins import LOOPBACK_NAMES, why_refused
from klamm.console.guard.sessions import ATTEMPTS_PER_MINUTE, LONGEST_S, MOST_SESSIONS, Attempts, Sessions
from klamm.testing import Broker

PASSWORD = "correct horse"
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture(scope="module")
def locked(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """A console with a password."""
    with console_of(broker.bootstrap, tmp_path_factory.mktemp("locked"), password=PASSWORD) as running:
        yield running


def ask(
    console: RunningConsole, method: str, path: str, body: str = "", **headers: str
) -> http.client.HTTPResponse:
    """An answer as it is: redirects are not followed. Header names are written with _ for -."""
    connection = http.client.HTTPConnection(urlsplit(console.url).netloc, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    answer.read()
    return answer


def upgrade(console: RunningConsole, path: str = SOCKET, **headers: str) -> int:
    """The status of the answer to a raw handshake of a web socket."""
    address = urlsplit(console.url)
    lines = {
        "Host": address.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
    } | {name.replace("_", "-"): text for name, text in headers.items()}
    with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
        head = "".join(f"{name}: {text}\r\n" for name, text in lines.items())
        raw.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        return int(raw.recv(4096).split()[1])


# ---- the origin


def test_a_web_socket_of_another_origin_is_refused(console: RunningConsole) -> None:
    assert upgrade(console, Origin=console.url) == 101
    assert upgrade(console) == 101, "not a browser"
    for origin in ("http://evil.example", "null", console.url.replace("http:", "http://evil.example@")):
        assert upgrade(console, Origin=origin) == 403, origin
    other_port = console.url.rpartition(":")[0] + ":1"
    assert upgrade(console, Origin=other_port) == 403


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_request_of_another_origin_is_refused(console: RunningConsole, method: str) -> None:
    answer = ask(console, method, "/api/v1/topics", Origin="http://evil.example")
    assert answer.status == 403
    assert answer.headers["access-control-allow-origin"] is None


def test_a_page_elsewhere_may_link_here_but_not_load_from_here(console: RunningConsole) -> None:
    assert ask(console, "GET", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200
    assert (
        ask(console, "GET", "/api/v1/topics", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors").status
        == 403
    )
    assert (
        ask(console, "POST", "/api/v1/topics", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="navigate").status
        == 403
    )


def test_another_name_that_points_here_is_refused(console: RunningConsole) -> None:
    port = urlsplit(console.url).port
    assert ask(console, "GET", "/api/v1/overview", Host=f"localhost:{port}").status == 200
    answer = ask(console, "GET", "/api/v1/overview", Host=f"rebound.example:{port}")
    assert answer.status == 403
    assert upgrade(console, Host=f"rebound.example:{port}", Origin=f"http://rebound.example:{port}") == 403


@pytest.mark.parametrize(
    ("headers", "opens_a_page", "is_fine"),
    [
        ({"host": "localhost:8080"}, True, True),
        ({"host": "LOCALHOST"}, True, True),
        ({"host": "[::1]:8080", "origin": "http://[::1]:8080"}, False, True),
        ({"host": ""}, True, False),
        ({}, True, False),
        ({"host": "localhost.evil.example"}, True, False),
        ({"host": "localhost:8080", "origin": "http://localhost:8081"}, True, False),
        ({"host": "localhost:8080", "origin": "null"}, False, False),
        ({"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True, True),
        ({"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False, False),
        ({"host": "localhost", "sec-fetch-site": "none"}, True, True),
    ],
)  # fmt: skip
def test_which_requests_are_ours(headers: dict[str, str], opens_a_page: bool, is_fine: bool) -> None:
    refused = why_refused(headers, names=LOOPBACK_NAMES, opens_a_page=opens_a_page)
    assert (refused is None) == is_fine, refused


# ---- the login


def test_nothing_is_shown_without_the_password(locked: RunningConsole) -> None:
    page = ask(locked, "GET", "/topics?page=2")
    assert (page.status, page.headers["location"]) == (303, "/login?next=%2Ftopics%3Fpage%3D2")
    assert ask(locked, "GET", "/api/v1/overview").status == 401
    assert ask(locked, "POST", "/api/v1/topics", "{}").status == 401
    assert upgrade(locked, Origin=locked.url) == 403
    assert ask(locked, "GET", "/_nicegui/anything").status == 401
    assert ask(locked, "GET", "/livez").status == 200
    assert ask(locked, "GET", "/login").status == 200


def log_in(console: RunningConsole, password: str, target: str = "/login") -> http.client.HTTPResponse:
    kind = "application/x-www-form-urlencoded"
    return ask(console, "POST", target, f"password={password}", Content_Type=kind, Origin=console.url)


def test_the_password_opens_a_session_until_it_is_closed(locked: RunningConsole) -> None:
    assert log_in(locked, "wrong").status == 401
    answer = log_in(locked, "correct+horse", "/login?next=%2Ftopics")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    kept, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert ask(locked, "GET", "/api/v1/overview", Cookie=kept).status == 200
    assert upgrade(locked, Origin=locked.url, Cookie=kept) == 101
    assert upgrade(locked, Origin="http://evil.example", Cookie=kept) == 403
    assert ask(locked, "GET", "/api/v1/overview", Cookie=kept[:-2]).status == 401
    assert ask(locked, "POST", "/logout", Cookie=kept, Origin=locked.url).status == 303
    assert ask(locked, "GET", "/api/v1/overview", Cookie=kept).status == 401


def test_programs_give_the_password_with_each_request(locked: RunningConsole) -> None:
    assert locked.ask("/api/v1/overview")[0] == 200
    wrong = base64.b64encode(b":wrong password").decode()
    assert ask(locked, "GET", "/api/v1/overview", Authorization=f"Basic {wrong}").status == 401


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\nb"])
def test_the_login_leads_nowhere_else(locked: RunningConsole, target: str) -> None:
    from urllib.parse import quote

    answer = log_in(locked, "correct+horse", f"/login?next={quote(target, safe='')}")
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_attempts_are_limited(broker: Broker, tmp_path: Path) -> None:
    with console_of(broker.bootstrap, tmp_path, password=PASSWORD) as console:
        statuses = [log_in(console, "wrong").status for _ in range(ATTEMPTS_PER_MINUTE + 1)]
        assert statuses == [401] * ATTEMPTS_PER_MINUTE + [429]
        assert log_in(console, "correct+horse").status == 429


def test_attempts_count_by_address_and_are_forgotten() -> None:
    attempts = Attempts()
    for second in range(ATTEMPTS_PER_MINUTE):
        assert attempts.may_try("1.2.3.4", second)
        attempts.failed("1.2.3.4", second)
    assert not attempts.may_try("1.2.3.4", 30)
    assert attempts.may_try("1.2.3.5", 30)
    assert attempts.may_try("1.2.3.4", 61)


def test_sessions_end_when_they_are_not_used_and_are_limited() -> None:
    sessions = Sessions()
    first = sessions.open(0)
    assert sessions.holds(first, LONGEST_S - 1)
    assert sessions.holds(first, 2 * LONGEST_S - 2)
    assert not sessions.holds(first, 4 * LONGEST_S)
    opened = [sessions.open(0) for _ in range(MOST_SESSIONS + 1)]
    assert not sessions.holds(opened[0], 1)
    assert sessions.holds(opened[1], 1) and sessions.holds(opened[-1], 1)


def test_a_password_is_kept_as_a_hash() -> None:
    kept = passwords.hashed(PASSWORD)
    assert PASSWORD not in kept and passwords.is_hash(kept) and not passwords.is_hash(PASSWORD)
    assert passwords.is_right(PASSWORD, kept)
    assert not passwords.is_right("correct hors", kept)
    assert passwords.hashed(PASSWORD) != kept, "each has a salt of its own"


def test_an_open_console_stays_on_this_machine(tmp_path: Path) -> None:
    text = complaint(tmp_path, "console", "--host", "0.0.0.0", "--port", "0")
    assert "open to all who reach 0.0.0.0" in text and "--password-file" in text
    (tmp_path / "short").write_text("1234\n")
    assert "has 4 characters" in complaint(tmp_path, "console", "--password-file", "short", "--port", "0")


# ---- what browsers are told


def test_pages_may_load_nothing_from_elsewhere(console: RunningConsole) -> None:
    answer = ask(console, "GET", "/")
    rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
    assert "'unsafe-inline'" not in rules["script-src"] and "'nonce-" in rules["script-src"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (
        ask(console, "GET", "/").headers["content-security-policy"]
        != answer.headers["content-security-policy"]
    )


def test_a_read_only_console_changes_nothing_whoever_asks(broker: Broker, tmp_path: Path) -> None:
    with console_of(broker.bootstrap, tmp_path, "--read-only") as console:
        for method, path, body in (
            ("POST", "/topics", {"name": "wished"}),
            ("DELETE", "/topics/orders", None),
            ("POST", "/topics/orders/partitions", {"total": 9}),
            ("PATCH", "/topics/orders/configs", {"set": {"retention.ms": "1"}}),
            ("DELETE", "/groups/billing", None),
        ):
            status, answer = console.ask(f"/api/v1{path}", body, method)
            assert (status, "read-only" in answer["error"]) == (403, True), (method, path, answer)
