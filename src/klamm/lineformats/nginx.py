"""nginx's `log_format`: variables become columns of the same names."""

from __future__ import annotations

import re
from typing import cast, get_args

from klamm.lineformats.format import BadFormat, Element, Escapes, Field, LineFormat, named_once, of_elements
from klamm.lineformats.times import COMMON, EPOCH_SECONDS, ISO, time_field

COMBINED = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
    '"$http_user_agent"'
)
KNOWN = {"combined": COMBINED, "main": f'{COMBINED} "$http_x_forwarded_for"'}
"""Formats that go by a name: nginx's own, and the one of the configuration that nginx is packaged with."""

_TIMES = {"time_local": COMMON, "time_iso8601": ISO, "msec": EPOCH_SECONDS}
_INTS = frozenset({"pid", "proxy_port", "remote_port", "server_port", "status"})
_BIGINTS = frozenset(
    {
        "body_bytes_sent",
        "bytes_received",
        "bytes_sent",
        "connection",
        "connection_requests",
        "connections_active",
        "connections_reading",
        "connections_waiting",
        "connections_writing",
        "content_length",
        "limit_rate",
        "request_length",
        "tcpinfo_rcv_space",
        "tcpinfo_rtt",
        "tcpinfo_rttvar",
        "tcpinfo_snd_cwnd",
    }
)
_DOUBLES = frozenset({"connection_time", "gzip_ratio", "request_time", "session_time"})

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))", re.ASCII)
_DIRECTIVE = re.compile(
    r"\s*log_format\s+\S+\s+(?:escape=(?P<escape>\w+)\s+)?(?P<format>.*?);?\s*", re.DOTALL
)
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""", re.DOTALL)
_ESCAPED_QUOTE = re.compile(r"""\\(["'\\])""")


def nginx_format(text: str = "combined", escape: str | None = None) -> LineFormat:
    """The format that a `log_format` describes: the text between its quotes, the whole directive, or a name
    of KNOWN. Raises BadFormat."""
    text, escape = _of_directive(text, escape)
    if (escape or "default") not in get_args(Escapes):
        raise BadFormat(f"escape={escape!r} is not valid", f"Use one of {', '.join(get_args(Escapes))}")
    escapes = cast(Escapes, escape or "default")
    text = KNOWN.get(text.strip(), text)
    elements: list[Element] = []
    at = 0
    for found in _VARIABLE.finditer(text):
        if found.start() > at:
            elements.append(text[at : found.start()])
        elements.append(_field(found["braced"] or found["plain"]))
        at = found.end()
    if not elements:
        raise BadFormat(
            f"the log_format {text!r} has no variable",
            f"Write it as in nginx.conf, or name one of {', '.join(KNOWN)}",
        )
    if at < len(text):
        elements.append(text[at:])
    return of_elements("nginx", named_once(elements), escapes)


def _field(variable: str) -> Field:
    name, shown = variable.lower(), f"${variable}"
    if name in _TIMES:
        return time_field(name, shown, _TIMES[name])
    if name in _INTS:
        return Field(name, "int", shown)
    if name in _BIGINTS:
        return Field(name, "bigint", shown)
    return Field(name, "double" if name in _DOUBLES else "text", shown)


def _of_directive(text: str, escape: str | None) -> tuple[str, str | None]:
    """The text of a format, and how it escapes, from a directive as in nginx.conf."""
    directive = _DIRECTIVE.fullmatch(text)
    if directive is None:
        return text, escape
    parts = []
    at = 0
    body = directive["format"]
    while at < len(body):
        quoted = _QUOTED.match(body, at)
        if quoted is None:
            raise BadFormat(
                f"the directive log_format cannot be read at {body[at : at + 20]!r}",
                "Copy it whole from nginx.conf, or give the text between its quotes",
            )
        parts.append(_ESCAPED_QUOTE.sub(r"\1", quoted[1] if quoted[1] is not None else quoted[2]))
        at = quoted.end()
    return "".join(parts), escape or directive["escape"]
