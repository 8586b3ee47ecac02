"""Stands before the whole application: nothing is answered that has not passed here, web sockets included."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote

from klamm.console.guard import policy
from klamm.console.guard.login import LOGIN_PATH, LOGOUT_PATH, login_page
from klamm.console.guard.origins import why_refused
from klamm.console.guard.passwords import is_right
from klamm.console.guard.sessions import Attempts, Sessions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "klamm-console"
OPEN_PATHS = ("/assets/", "/livez")
"""What the login page needs, and whoever watches whether the process lives."""
API_PATH = "/api/"
LARGEST_FORM_BYTES = 8_192
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]*")


@dataclass(frozen=True)
class Rules:
    """Who may do what. `names` are those by which the console may be called; None means any."""

    password_hash: str | None
    names: frozenset[str] | None


class Guard:
    """An ASGI application around another."""

    def __init__(self, application: Application, rules: Rules) -> None:
        self._application = application
        self._rules = rules
        self._sessions = Sessions()
        self._attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        request = _Request(scope)
        # It would become part of the addresses in the page, and only proxies that change paths need it.
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-forwarded-prefix"]
        refused = why_refused(
            request.headers,
            names=self._rules.names,
            opens_a_page=request.method in ("GET", "HEAD") and not request.is_socket,
        )
        if refused is not None or not _HOST.fullmatch(request.headers.get("host", "")):
            await _refuse(request, receive, send, 403, refused or "the name of the host is not valid")
            return
        if request.path == LOGIN_PATH and self._rules.password_hash is not None and not request.is_socket:
            await self._log_in(request, receive, send)
        elif request.path == LOGOUT_PATH and request.method == "POST":
            self._sessions.close(request.token)
            await _redirect(send, LOGIN_PATH, _cookie(request, "", 0))
        elif request.path.startswith(OPEN_PATHS) or await self._is_known(request):
            await self._application(scope, receive, _Hardened(request, send))
        elif request.wants_a_page:
            target = request.path + (f"?{request.query}" if request.query else "")
            await _redirect(send, f"{LOGIN_PATH}?next={quote(target, safe='')}")
        else:
            await _refuse(request, receive, send, 401, "log in first, or send the password by HTTP Basic")

    async def _is_known(self, request: _Request) -> bool:
        kept = self._rules.password_hash
        if kept is None or self._sessions.holds(request.token, time.monotonic()):
            return True
        password = request.basic_password
        if password is None or not request.path.startswith(API_PATH):
            return False
        return await self._is_right(request, password, kept)

    async def _is_right(self, request: _Request, password: str, kept: str) -> bool:
        if not self._attempts.may_try(request.address, time.monotonic()):
            return False
        # A thread, because hashing takes long, on purpose.
        if await asyncio.to_thread(is_right, password, kept):
            return True
        self._attempts.failed(request.address, time.monotonic())
        return False

    async def _log_in(self, request: _Request, receive: Receive, send: Send) -> None:
        kept = self._rules.password_hash
        assert kept is not None
        target = _safe_target(parse_qs(request.query).get("next", ["/"])[0])
        status, complaint = 200, ""
        if request.method == "POST":
            form = await _form(receive)
            if not self._attempts.may_try(request.address, time.monotonic()):
                status, complaint = 429, "Too many wrong passwords. Wait a minute, then try again."
            elif await self._is_right(request, form.get("password", ""), kept):
                token = self._sessions.open(time.monotonic())
                await _redirect(send, target, _cookie(request, token, None))
                return
            else:
                status, complaint = 401, "This is not the password."
        body = login_page(complaint).encode()
        await _answer(_Hardened(request, send), status, "text/html; charset=utf-8", body)


class _Request:
    """What the guard reads of a request."""

    def __init__(self, scope: Scope) -> None:
        self.is_socket = scope["type"] == "websocket"
        self.method: str = scope.get("method", "GET")
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.is_tls = scope.get("scheme") in ("https", "wss")

    @property
    def token(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return found.value if found else ""

    @property
    def basic_password(self) -> str | None:
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            return base64.b64decode(text, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None

    @property
    def wants_a_page(self) -> bool:
        return (
            not self.is_socket and self.method == "GET" and not self.path.startswith((API_PATH, "/_nicegui"))
        )


class _Hardened:
    """Adds the headers of the policy to an answer, and its nonce to a page."""

    def __init__(self, request: _Request, send: Send) -> None:
        self._send = send
        self._nonce = policy.new_nonce()
        self._headers = policy.headers(self._nonce, request.headers.get("host", ""))
        self._start: MutableMapping[str, Any] | None = None
        self._page: list[bytes] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [one for one in message["headers"] if not one[0].lower().startswith(b"access-control-")]
            kept += [(name.encode(), value.encode("latin-1")) for name, value in self._headers.items()]
            message["headers"] = kept
            if _header(kept, b"content-type").startswith(b"text/html"):
                self._start = message
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._page.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = policy.with_nonce(b"".join(self._page), self._nonce)
            lengths = [one for one in self._start["headers"] if one[0].lower() != b"content-length"]
            self._start["headers"] = [*lengths, (b"content-length", str(len(body)).encode())]
            await self._send(self._start)
            self._start = None
            message = {"type": "http.response.body", "body": body}
        await self._send(message)


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key.lower() == name), b"")


async def _form(receive: Receive) -> dict[str, str]:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LARGEST_FORM_BYTES or message["type"] == "http.disconnect":
            return {}
        if not message.get("more_body"):
            break
    return {name: values[0] for name, values in parse_qs(body.decode("latin-1"), encoding="utf-8").items()}


def _safe_target(target: str) -> str:
    """Where to go after the login: a path of this console, never another host."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_path and "\\" not in target else "/"


def _cookie(request: _Request, token: str, age_s: int | None) -> bytes:
    parts = [f"{COOKIE}={token}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if request.is_tls:
        parts.append("Secure")
    if age_s is not None:
        parts.append(f"Max-Age={age_s}")
    return "; ".join(parts).encode()


async def _redirect(send: Send, target: str, cookie: bytes | None = None) -> None:
    headers = [
        (b"location", quote(target, safe="/?&=%~+:,@!$'()*;").encode()),
        (b"cache-control", b"no-store"),
    ]
    if cookie is not None:
        headers.append((b"set-cookie", cookie))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(request: _Request, receive: Receive, send: Send, status: int, why: str) -> None:
    if request.is_socket:
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why[:100]})
        return
    body = json.dumps({"error": f"refused: {why}"}).encode()
    await _answer(_Hardened(request, send), status, "application/json", body)


async def _answer(send: Callable[..., Awaitable[None]], status: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
