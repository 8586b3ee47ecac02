"""Where to start in a partition without a committed offset: the values of auto.offset.reset, and `start`.

A core: callers pass the time. A policy is text in the configuration and a StartPolicy in the code;
`start_text` turns what Python users write (a datetime, a timedelta) into that text.
"""

from __future__ import annotations

import difflib
import re
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from klamm.client.arguments import time_ms
from klamm.client.errors import ClientMisused
from klamm.config.rows import ConfigError

Start: TypeAlias = str | datetime | timedelta | None
"""The types of the argument `start`."""

LATEST = -1
EARLIEST = -2
"""The timestamps of a ListOffsets request that ask for the two ends of a log."""

_KEY = "auto.offset.reset"
_ARGUMENT = "start"
_WORDS = ("earliest", "latest", "none")
_MEANT = {
    **dict.fromkeys(("begin", "beginning", "first", "head", "oldest", "smallest", "start"), "earliest"),
    **dict.fromkeys(("end", "last", "newest", "now", "largest", "tail"), "latest"),
    **dict.fromkeys(("error", "exception", "fail"), "none"),
}
"""What other clients call these values, for the text of an error."""
_DURATION_WORD = "by_duration:"
_TIME_WORD = "by_time:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


class StartPolicy(NamedTuple):
    """`word` is earliest, latest, none, time or duration; the last two have `milliseconds`."""

    word: str
    milliseconds: int = 0

    def timestamp(self, now_ms: int) -> int | None:
        """The timestamp for ListOffsets; None if the policy is `none`."""
        match self.word:
            case "earliest":
                return EARLIEST
            case "latest":
                return LATEST
            case "time":
                return self.milliseconds
            case "duration":
                return max(0, now_ms - self.milliseconds)
        return None


def parse_start(text: str, name: str = _KEY) -> StartPolicy:
    """Parse a value of auto.offset.reset. `name` is the setting that the user gave, for the ConfigError."""
    if text in _WORDS:
        return StartPolicy(text)
    try:
        if text.startswith(_DURATION_WORD):
            return StartPolicy("duration", _duration_ms(text.removeprefix(_DURATION_WORD)))
        if text.startswith(_TIME_WORD):
            return StartPolicy("time", time_ms(datetime.fromisoformat(text.removeprefix(_TIME_WORD))))
    except (ValueError, OverflowError, ClientMisused) as error:
        raise ConfigError(f"{name}={text} is refused: {error}", key=name) from None
    python_ways = ", a datetime, a timedelta (that long ago)" if name == _ARGUMENT else ""
    raise ConfigError(
        f"{name}={text} is refused: it must be earliest, latest, none{python_ways}, by_duration:PT1H (an "
        f"hour ago) or by_time:2026-01-31T12:00:00Z{_nearest(text)}",
        key=name,
    )


def _nearest(text: str) -> str:
    """The value that the user probably meant, as the end of a sentence."""
    word = text.strip().lower()
    near = difflib.get_close_matches(word, (*_WORDS, *_MEANT), n=1)
    return f"; the nearest is {_MEANT.get(near[0], near[0])}" if near else ""


def start_text(start: Start) -> str | None:
    """The argument `start` as a value of auto.offset.reset."""
    if isinstance(start, timedelta):
        if start < timedelta(0):
            raise ConfigError(f"start={start!r} is refused: it says how long ago, not when", key=_ARGUMENT)
        return f"{_DURATION_WORD}PT{start / timedelta(seconds=1):f}S"
    if isinstance(start, datetime):
        start = f"{_TIME_WORD}{start.isoformat()}"
    if start is None:
        return None
    if not isinstance(start, str):
        raise ConfigError(
            f"start={start!r} is refused: it must be a word, a datetime or a timedelta", key=_ARGUMENT
        )
    parse_start(start, _ARGUMENT)
    return start


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    parts = {name: float(number) for name, number in found.groupdict().items() if number} if found else {}
    if not parts:
        raise ValueError(f"{text!r} is not a valid duration: expected one such as PT1H, PT30M or P7D")
    return round(timedelta(**parts) / timedelta(milliseconds=1))
