"""Times as servers write them in their logs, as microseconds since 1970. Without a zone they count as UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

from klamm.lineformats.format import Field

COMMON = "%d/%b/%Y:%H:%M:%S %z"
"""31/Jan/2026:12:30:00 +0100, as both servers write it."""
ISO = "%Y-%m-%dT%H:%M:%S%z"
EPOCH_WHOLE_SECONDS = "%s"
EPOCH_SECONDS = "epoch seconds"
EPOCH_MILLISECONDS = "epoch milliseconds"
EPOCH_MICROSECONDS = "epoch microseconds"

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_NUMBERS = {name: number for number, name in enumerate(_MONTHS, 1)}

_EPOCHS = {
    EPOCH_WHOLE_SECONDS: (r"\d{1,12}", 1_000_000),
    EPOCH_SECONDS: (r"\d{1,12}\.\d{1,6}", 1_000_000),
    EPOCH_MILLISECONDS: (r"\d{1,15}", 1000),
    EPOCH_MICROSECONDS: (r"\d{1,18}", 1),
}
_DIRECTIVES = {
    "Y": r"\d{4}",
    "m": r"\d\d",
    "d": r"\d\d",
    "e": r"[ \d]\d",
    "b": "|".join(_MONTHS),
    "H": r"\d\d",
    "M": r"\d\d",
    "S": r"\d\d",
    "z": r"[+-]\d\d:?\d\d|Z",
}
_SHORT = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%h": "%b"}
_DIRECTIVE = re.compile("%(.)")


def time_field(name: str, shown: str, written: str) -> Field:
    """The field of a time that is written in one of the ways above, or by a format of strftime."""
    return Field(name, "time", shown, _pattern(written, named=False), written)


def is_time_format(written: str) -> bool:
    """True if a format of strftime has a date and only directives that can be read here."""
    if written in _EPOCHS:
        return True
    written = _long(written)
    found = set(_DIRECTIVE.findall(written))
    has_date = "Y" in found and found & {"m", "b"} and found & {"d", "e"}
    is_each_once = len(found) == written.count("%")
    return bool(has_date) and found <= _DIRECTIVES.keys() and is_each_once


def time_reader(written: str) -> Callable[[str], int | None]:
    """A function from a time as it is written to microseconds since 1970; to None if there is no such
    time."""
    if written in _EPOCHS:
        factor = _EPOCHS[written][1]
        return lambda text: _epoch(text, factor)
    match = re.compile(_pattern(written, named=True)).fullmatch

    def read(text: str) -> int | None:
        found = match(text)
        return None if found is None else _microseconds(found.groupdict())

    return read


def _pattern(written: str, *, named: bool) -> str:
    if written in _EPOCHS:
        return _EPOCHS[written][0]
    parts = []
    at = 0
    written = _long(written)
    for found in _DIRECTIVE.finditer(written):
        group = f"?P<{found[1]}>" if named else "?:"
        parts += [re.escape(written[at : found.start()]), f"({group}{_DIRECTIVES[found[1]]})"]
        at = found.end()
    return "".join(parts) + re.escape(written[at:])


def _long(written: str) -> str:
    for short, long in _SHORT.items():
        written = written.replace(short, long)
    return written


def _epoch(text: str, factor: int) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds) * factor + int(fraction.ljust(6, "0") if fraction else 0)


def _microseconds(parts: dict[str, str]) -> int | None:
    month = int(parts["m"]) if "m" in parts else _MONTH_NUMBERS[parts["b"]]
    seconds = min(int(parts.get("S", 0)), 59)  # 60 is a leap second
    try:
        moment = datetime(
            int(parts["Y"]),
            month,
            int(parts.get("d", parts.get("e", "1"))),
            int(parts.get("H", 0)),
            int(parts.get("M", 0)),
            seconds,
            tzinfo=_zone(parts.get("z", "Z")),
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))
