"""A console as a user starts it, in a process of its own, and a real browser that looks at it.

    with console_of(broker.bootstrap, folder) as console, browser() as chromium:
        with chromium.page(console) as page:
            page.goto("/topics")

A page fails its test if the browser complains, or asks another host for anything.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from tests.cli.commands import Command, run_klamm
from tests.peers.kafka_jars import PeerMissing

CHROMIUM = "/usr/bin/chromium"
DESKTOP = (1440, 900)
TABLET = (1024, 768)
PHONE = (390, 844)
PATIENCE_MS = 60_000


class RunningConsole:
    """A console process, and its JSON API."""

    def __init__(self, command: Command, url: str, password: str = "") -> None:
        self.command = command
        self.url = url
        self.password = password

    def ask(
        self, path: str, body: object = None, method: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        chosen = method or ("GET" if data is None else "POST")
        request = urllib.request.Request(self.url + path, data, method=chosen)
        request.add_header("content-type", "application/json")
        if self.password:
            request.add_header("authorization", "Basic " + b64encode(f":{self.password}".encode()).decode())
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_MS / 1000) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def get(self, path: str) -> Any:
        status, found = self.ask(f"/api/v1{path}")
        assert status == 200, found
        return found


@contextmanager
def console_of(
    bootstrap: str, folder: Path, *arguments: str, password: str = "", **variables: str
) -> Iterator[RunningConsole]:
    """A console on a free port. It must end cleanly."""
    if password:
        variables["KLAMM_CONSOLE_PASSWORD"] = password
    words = ("console", "-b", bootstrap, "--port", "0", *arguments)
    with run_klamm(folder, *words, **variables) as command:
        line = command.wait_for_line("the console is at")
        yield RunningConsole(command, line.rpartition(" ")[2], password)
        assert command.stop(signal.SIGTERM) == 0, command
    assert not any("Traceback" in line for line in command.complained), command


class Chromium:
    """One browser. Each page has a session of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def page(
        self,
        console: RunningConsole,
        *,
        theme: str = "dark",
        size: tuple[int, int] = DESKTOP,
        allow: str = "",
    ) -> Iterator[Page]:
        """A page in a new session. Complaints of the browser fail it, but those with `allow`."""
        complaints: list[str] = []
        host = urlsplit(console.url).netloc
        with self._browser.new_context(
            base_url=console.url,
            color_scheme=theme,  # type: ignore[arg-type]
            viewport={"width": size[0], "height": size[1]},
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        ) as context:
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()

            def hear(message: ConsoleMessage) -> None:
                if message.type in ("error", "warning") and not (allow and allow in message.text):
                    complaints.append(f"{message.type}: {message.text}")

            def see(request: Request) -> None:
                asked = urlsplit(request.url)
                if asked.scheme not in ("data", "blob") and asked.netloc != host:
                    complaints.append(f"another host was asked: {request.url}")

            page.on("console", hear)
            page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
            context.on("request", see)
            page.on("websocket", lambda socket: complaints.extend(_elsewhere(socket.url, host)))
            yield page
        assert not complaints, "\n".join(complaints)


def _elsewhere(url: str, host: str) -> list[str]:
    return [] if urlsplit(url).netloc == host else [f"another host was asked: {url}"]


@contextmanager
def browser() -> Iterator[Chromium]:
    """Debian's Chromium. PeerMissing, which skips the test, where it is not installed."""
    if not Path(CHROMIUM).exists():
        raise PeerMissing("chromium is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield Chromium(launched)
        finally:
            launched.close()
