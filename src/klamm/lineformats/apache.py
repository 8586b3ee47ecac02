"""Apache's `LogFormat`: directives become columns, named like nginx's variables where both have the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from klamm.lineformats.format import BadFormat, Element, Field, LineFormat, named_once, of_elements
from klamm.lineformats.times import (
    COMMON,
    EPOCH_MICROSECONDS,
    EPOCH_MILLISECONDS,
    EPOCH_WHOLE_SECONDS,
    is_time_format,
    time_field,
)

COMMON_FORMAT = '%h %l %u %t "%r" %>s %b'
COMBINED_FORMAT = f'{COMMON_FORMAT} "%{{Referer}}i" "%{{User-Agent}}i"'
DEFAULT = "combined or common"
KNOWN = {
    "common": COMMON_FORMAT,
    "combined": COMBINED_FORMAT,
    "vhost_common": f"%v {COMMON_FORMAT}",
    "vhost_combined": '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
}
"""Formats that go by a name: those of Apache's documentation and of Debian's configuration."""

_PLAIN: Mapping[str, Field] = {
    "a": Field("remote_addr"),
    "A": Field("server_addr"),
    "b": Field("body_bytes_sent", "bigint"),
    "B": Field("body_bytes_sent", "bigint"),
    "D": Field("duration_us", "bigint"),
    "f": Field("request_filename"),
    "h": Field("remote_host"),
    "H": Field("server_protocol"),
    "I": Field("request_length", "bigint"),
    "k": Field("keepalive_requests", "int"),
    "l": Field("remote_logname"),
    "L": Field("log_id"),
    "m": Field("request_method"),
    "O": Field("bytes_sent", "bigint"),
    "p": Field("server_port", "int"),
    "P": Field("pid", "int"),
    "q": Field("query_string"),
    "r": Field("request"),
    "R": Field("handler"),
    "s": Field("status", "int"),
    "S": Field("bytes_transferred", "bigint"),
    "T": Field("duration_s", "bigint"),
    "u": Field("remote_user"),
    "U": Field("uri"),
    "v": Field("server_name"),
    "V": Field("host"),
    "X": Field("connection_status"),
}
_NAMED: Mapping[str, str] = {
    "C": "cookie_",
    "c": "",
    "e": "env_",
    "i": "http_",
    "n": "note_",
    "o": "sent_http_",
    "x": "",
    "^ti": "trailer_",
    "^to": "sent_trailer_",
}
"""Directives with a name in braces, and what the names of their columns begin with."""
_WITH_ARGUMENT: Mapping[tuple[str, str], Field] = {
    ("a", "c"): Field("peer_addr"),
    ("h", "c"): Field("peer_host"),
    ("p", "canonical"): Field("server_port", "int"),
    ("p", "local"): Field("local_port", "int"),
    ("p", "remote"): Field("remote_port", "int"),
    ("P", "pid"): Field("pid", "int"),
    ("P", "tid"): Field("tid"),
    ("P", "hextid"): Field("tid"),
    ("T", "s"): Field("duration_s", "bigint"),
    ("T", "ms"): Field("duration_ms", "bigint"),
    ("T", "us"): Field("duration_us", "bigint"),
    ("L", "c"): Field("connection_log_id"),
}
_TIMES = {
    "sec": EPOCH_WHOLE_SECONDS,
    "msec": EPOCH_MILLISECONDS,
    "usec": EPOCH_MICROSECONDS,
}

_DIRECTIVE = re.compile(
    r"%(?P<modifiers>[!<>,\d]*)(?:\{(?P<argument>[^}]*)\})?[<>]*(?P<letter>\^[A-Za-z]{2}|[A-Za-z%])"
)
_LOG_FORMAT = re.compile(r'\s*LogFormat\s+"(?P<format>(?:[^"\\]|\\.)*)"(?:\s+\S+)?\s*')
_ESCAPES = {"n": "\n", "t": "\t"}


def apache_format(text: str = DEFAULT) -> LineFormat:
    """The format that a `LogFormat` describes: the text between its quotes, the whole directive, or a name of
    KNOWN. By default both the combined and the common format are read. Raises BadFormat."""
    if text == DEFAULT:
        common = _elements(COMMON_FORMAT)
        return of_elements("apache", _elements(COMBINED_FORMAT), "default", common)
    return of_elements("apache", _elements(_text_of(text)), "default")


def _text_of(text: str) -> str:
    directive = _LOG_FORMAT.fullmatch(text)
    text = KNOWN.get(text.strip(), directive["format"] if directive else text)
    # As Apache reads its configuration.
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)


def _elements(text: str) -> list[Element]:
    elements: list[Element] = []

    def add(more: Element) -> None:
        if isinstance(more, str) and elements and isinstance(elements[-1], str):
            elements[-1] += more
        elif more:
            elements.append(more)

    at = 0
    while (start := text.find("%", at)) >= 0:
        add(text[at:start])
        found = _DIRECTIVE.match(text, start)
        if found is None:
            raise _unknown(text[start : start + 12])
        for element in _of_directive(found[0], found["letter"], found["argument"]):
            add(element)
        at = found.end()
    add(text[at:])
    if not any(isinstance(element, Field) for element in elements):
        raise BadFormat(
            f"the log_format {text!r} has no directive",
            f"Write it as in Apache's configuration, or name one of {', '.join(KNOWN)}",
        )
    return named_once(elements)


def _of_directive(shown: str, letter: str, argument: str | None) -> tuple[Element, ...]:
    if letter == "%":
        return ("%",)
    if letter == "t":
        return _time(shown, argument)
    field = _PLAIN.get(letter) if argument is None else _WITH_ARGUMENT.get((letter, argument))
    if field is None and argument and letter in _NAMED:
        name = re.sub(r"\W", "_", argument, flags=re.ASCII).lower()
        field = Field(_NAMED[letter] + name if _NAMED[letter] or not name[:1].isdigit() else f"_{name}")
    if field is None:
        raise _unknown(shown)
    return (Field(field.name, field.kind, shown),)


def _time(shown: str, argument: str | None) -> tuple[Element, ...]:
    if not argument:
        return ("[", time_field("time_local", shown, COMMON), "]")
    written = argument.removeprefix("begin:").removeprefix("end:")
    if written in _TIMES:
        return (time_field("time_local", shown, _TIMES[written]),)
    if written in ("msec_frac", "usec_frac"):
        return (Field(f"time_{written}", "int", shown),)
    if is_time_format(written):
        return (time_field("time_local", shown, written),)
    return (Field("time_local", "text", shown),)


def _unknown(shown: str) -> BadFormat:
    return BadFormat(
        f"the log_format has {shown!r}, which is not a directive of Apache's LogFormat",
        "Write a percent sign that stands for itself as %%",
    )
