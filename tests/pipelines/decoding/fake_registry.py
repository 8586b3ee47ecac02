"""A schema registry for tests: a real HTTP server that says what it was told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class FakeRegistry:
    """`answers` by path; `failures` are codes that come first; `asked` and `credentials` of all requests.
    Answers are cut off by `cut_off_bytes`."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.credentials: list[str | None] = []
        self.cut_off_bytes = 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.credentials.append(self.headers.get("Authorization"))
                codes = registry.failures.get(self.path)
                found = registry.answers.get(self.path)
                code = codes.pop(0) if codes else 404 if found is None else 200
                text = json.dumps(found or {"error_code": 40403 if code == 404 else code}).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text) + registry.cut_off_bytes))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the requests are in `asked`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
