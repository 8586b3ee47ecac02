r"""How records are written to stdout by a format such as '%t %p %o %k %v'.

    %t topic   %p partition   %o offset   %k key   %v value   %s value, as kcat
    %T timestamp in ms   %d timestamp as ISO 8601   %h headers, name=value with commas
    %K length of the key   %V length of the value   %S the same, as kcat    (-1 for null)
    %% a percent sign   \n \t \r \0 \\ as usual, \xHH a byte

A format that does not end in a newline or a null byte gets a newline. Bytes are written as they are. A key or
a value that is null is written as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from klamm.cli.errors import CommandError
from klamm.client.results import Record

DEFAULT_FORMAT = "%v"
Render = Callable[[Sequence[Record]], bytes]
"""Makes what is written for some records."""

_PIECE = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def renderer(format_: str) -> Render:
    """Raises CommandError for a format that has an unknown directive."""
    template, fields = _parse(format_)
    if template == b"%b\n" and fields == [_value]:
        return _values
    if not fields:
        line = template % ()
        return lambda records: line * len(records)
    if len(fields) == 1:
        (field,) = fields
        return lambda records: b"".join([template % field(record) for record in records])
    return lambda records: b"".join(
        [template % tuple([field(record) for field in fields]) for record in records]
    )


def _parse(format_: str) -> tuple[bytes, list[Callable[[Record], Any]]]:
    """A template for `bytes % tuple`, and what goes into it."""
    template = bytearray()
    fields: list[Callable[[Record], Any]] = []
    for piece in _PIECE.finditer(format_):
        directive, hexadecimal, escape, text = piece.groups()
        if text is not None:
            template += text.encode()
        elif hexadecimal is not None:
            template += bytes.fromhex(hexadecimal).replace(b"%", b"%%")
        elif escape is not None:
            if escape not in _ESCAPES:
                raise CommandError(
                    f"{piece[0]} in the format is not known: there are \\n \\t \\r \\0 \\\\ \\xHH"
                )
            template += _ESCAPES[escape]
        elif directive == "%":
            template += b"%%"
        elif directive in _DIRECTIVES:
            field, conversion = _DIRECTIVES[directive]
            fields.append(field)
            template += conversion
        else:
            known = " ".join(f"%{each}" for each in _DIRECTIVES)
            raise CommandError(f"%{directive} in the format is not known: there are {known}")
    if not template.endswith((b"\n", b"\0")):
        template += b"\n"
    return bytes(template), fields


def _values(records: Sequence[Record]) -> bytes:
    """The usual format, as fast as it can be."""
    lines = [record[5] or b"" for record in records]
    lines.append(b"")
    return b"\n".join(lines)


def _topic(record: Record) -> bytes:
    return record.topic.encode()


def _key(record: Record) -> bytes:
    return record.key or b""


def _value(record: Record) -> bytes:
    return record.value or b""


def _headers(record: Record) -> bytes:
    return b",".join([name.encode() + b"=" + (value or b"") for name, value in record.headers])


def _iso(record: Record) -> bytes:
    if record.timestamp < 0:
        return b"-"
    moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


_DIRECTIVES: dict[str, tuple[Callable[[Record], Any], bytes]] = {
    "t": (_topic, b"%b"),
    "p": (lambda record: record.partition, b"%d"),
    "o": (lambda record: record.offset, b"%d"),
    "k": (_key, b"%b"),
    "v": (_value, b"%b"),
    "s": (_value, b"%b"),
    "T": (lambda record: record.timestamp, b"%d"),
    "d": (_iso, b"%b"),
    "h": (_headers, b"%b"),
    "K": (lambda record: _length(record.key), b"%d"),
    "V": (lambda record: _length(record.value), b"%d"),
    "S": (lambda record: _length(record.value), b"%d"),
}
