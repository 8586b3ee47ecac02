"""Places in partitions as users write them: where to begin reading, and where to stop.

    start              from the first record on
    end                only records that come from now on
    5                  from offset 5 on
    -10                the last ten offsets
    5:9                offsets 5, 6, 7 and 8
    :9    5:end        to offset 8; from 5 to the present end
    @2026-01-01T10:00  from that time on; local time without a zone. Also @2026-01-01, @1767261600000 (ms)
    @-90m              from 90 minutes ago on (s, m, h, d)
    @10:00Z:@11:00Z    between two times (whole dates: @2026-01-01T10:00:@2026-01-01T11:00)

The second part is where to stop, without its own record. A core: times are given, offsets are looked up by
the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import NamedTuple

from klamm.operating.errors import CannotDo

EXAMPLES = "start, end, 5, -10, 5:9, @2026-01-01T10:00 or @-1h"
_AGO = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Kind(StrEnum):
    """What a bound names."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BACK = "back"
    """So many offsets before the end."""
    TIME = "time"


class Bound(NamedTuple):
    kind: Kind
    value: int = 0
    """An offset, a number of offsets, or milliseconds since 1970."""


class Range(NamedTuple):
    """From `first` on, up to `last` without its record; without `last`, for ever."""

    first: Bound
    last: Bound | None = None

    def times(self) -> set[int]:
        """The times whose offsets must be looked up."""
        return {each.value for each in self if each is not None and each.kind is Kind.TIME}


class Ends(NamedTuple):
    """The first offset of a partition, and the one after its last record."""

    first: int
    last: int


def parse_range(text: str, now: datetime) -> Range:
    """Raises CannotDo for a text that names no records."""
    first, has_last, last = _halves(text.strip())
    range_ = Range(
        _bound(first, text, now) if first or not has_last else Bound(Kind.START),
        _bound(last or "end", text, now) if has_last else None,
    )
    if range_.last is not None and range_.last.kind is Kind.START:
        raise CannotDo(f"{text} ends where it begins: nothing is before start")
    return range_


def offset_of(bound: Bound, ends: Ends, offsets_of_times: Mapping[int, int | None]) -> int:
    """The offset of a bound in a partition, within the offsets that the partition has or will have next.

    An offset after the end stays as it is: the record may still come.
    """
    match bound.kind:
        case Kind.START:
            return ends.first
        case Kind.END:
            return ends.last
        case Kind.BACK:
            return max(ends.first, ends.last - bound.value)
        case Kind.TIME:
            found = offsets_of_times.get(bound.value)
            return ends.last if found is None else found
        case Kind.OFFSET:
            return max(ends.first, bound.value)


def _halves(text: str) -> tuple[str, bool, str]:
    """Times have colons, too: two of them are divided by `:@`."""
    if text.startswith("@"):
        first, has_last, last = text.partition(":@")
        if has_last:
            return first, True, f"@{last}"
        if text.endswith(":end"):
            return text.removesuffix(":end"), True, "end"
        return text, False, ""
    first, has_last, last = text.partition(":")
    return first, bool(has_last), last


def _bound(text: str, whole: str, now: datetime) -> Bound:
    if text == "start":
        return Bound(Kind.START)
    if text == "end":
        return Bound(Kind.END)
    if text.startswith("@"):
        return Bound(Kind.TIME, _milliseconds(text[1:], whole, now))
    try:
        number = int(text)
    except ValueError:
        raise CannotDo(f"{whole} names no records: expected {EXAMPLES}") from None
    return Bound(Kind.BACK, -number) if text.startswith("-") else Bound(Kind.OFFSET, number)


def parse_place(text: str, now: datetime) -> Bound:
    """A single place: start, end, 5, -10, @2026-01-01T10:00, @-90m, or -90m. Raises CannotDo."""
    text = text.strip()
    if _AGO.fullmatch(text):
        return Bound(Kind.TIME, _milliseconds(text, text, now))
    return _bound(text, text, now)


def parse_time(text: str, now: datetime) -> int:
    """A time as milliseconds since 1970. Raises CannotDo."""
    return _milliseconds(text.removeprefix("@"), text, now)


def _milliseconds(text: str, whole: str, now: datetime) -> int:
    if ago := _AGO.fullmatch(text):
        moment = now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    elif text.isdigit():
        return int(text)
    else:
        moment = _moment(text, whole, now)
    return int(moment.timestamp() * 1000)


def _moment(text: str, whole: str, now: datetime) -> datetime:
    """A date with or without a time, or a time of today."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            found = datetime.combine(_today(now), time.fromisoformat(text))
        except ValueError:
            raise CannotDo(
                f"{whole}: {text} is not a time: expected 2026-01-01T10:00, 10:00, -1h or milliseconds"
            ) from None
    return found if found.tzinfo is not None else found.astimezone()


def _today(now: datetime) -> date:
    return now.astimezone().date()


def present() -> datetime:
    return datetime.now(UTC)
