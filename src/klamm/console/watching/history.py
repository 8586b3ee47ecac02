"""What was, in bounded memory: rates and lag at the times of the latest looks.

A track keeps the values of many series at common times, the newest `length` of them. A series that was not
there at a time has no value then. The history has a short track, with every look, and a long one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

Point = tuple[int, float | None]
"""A time in milliseconds, and the value then."""

SHORT_LENGTH = 180
"""A quarter of an hour of looks every five seconds."""
LONG_LENGTH = 360
LONG_INTERVAL_MS = 60_000
"""Six hours of values every minute."""
SHORT_RANGE_MS = 15 * 60_000

MOST_SERIES = 20_000
"""Of each track: 45 MB at most. What is beyond has no history."""

_NO_VALUE = math.nan


class Track:
    """Values of series at common times, in rings of the same length."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._times: list[int] = []
        self._values: dict[str, array[float]] = {}
        self._ticks = 0

    def add(self, time_ms: int, values: Mapping[str, float]) -> None:
        place = self._ticks % self._length
        if len(self._times) < self._length:
            self._times.append(time_ms)
        else:
            self._times[place] = time_ms
        for name, ring in list(self._values.items()):
            if name not in values:
                ring[place] = _NO_VALUE
                if all(math.isnan(value) for value in ring):
                    del self._values[name]
        for name, value in values.items():
            ring = self._values.get(name)  # type: ignore[assignment]
            if ring is None:
                if len(self._values) >= MOST_SERIES:
                    continue
                ring = self._values[name] = array("f", [_NO_VALUE]) * self._length
            ring[place] = value
        self._ticks += 1

    def points(self, name: str, since_ms: int = 0) -> list[Point]:
        """The values of a series, the oldest first; None at times without one."""
        ring = self._values.get(name)
        found: list[Point] = []
        count = len(self._times)
        first = self._ticks - count
        for tick in range(first, self._ticks):
            place = tick % self._length
            if self._times[place] >= since_ms:
                value = _NO_VALUE if ring is None else ring[place]
                found.append((self._times[place], None if math.isnan(value) else value))
        return found

    def tail(self, name: str, count: int) -> list[Point]:
        """The latest values of a series, at most `count`, the oldest first."""
        ring = self._values.get(name)
        if ring is None:
            return []
        found: list[Point] = []
        for tick in range(max(0, self._ticks - min(count, len(self._times))), self._ticks):
            place = tick % self._length
            value = ring[place]
            found.append((self._times[place], None if math.isnan(value) else value))
        return found


class History:
    """The short and the long track of the same series."""

    def __init__(self) -> None:
        self._short = Track(SHORT_LENGTH)
        self._long = Track(LONG_LENGTH)
        self._last_long_ms = 0

    def add(self, time_ms: int, values: Mapping[str, float]) -> None:
        self._short.add(time_ms, values)
        if time_ms - self._last_long_ms >= LONG_INTERVAL_MS:
            self._last_long_ms = time_ms
            self._long.add(time_ms, values)

    def points(self, name: str, now_ms: int, range_ms: int = SHORT_RANGE_MS) -> list[Point]:
        """The values of a series in the latest `range_ms`."""
        track = self._short if range_ms <= SHORT_RANGE_MS else self._long
        return track.points(name, now_ms - range_ms)

    def latest(self, name: str, count: int) -> list[float | None]:
        """The latest values, for a sparkline."""
        return [value for _, value in self._short.tail(name, count)]

    def tail(self, name: str, count: int) -> list[Point]:
        """The latest values with their times."""
        return self._short.tail(name, count)


def produced(topic: str) -> str:
    """The series of records per second that are written to a topic."""
    return f"in {topic}"


def consumed(group: str) -> str:
    """The series of records per second that a group commits."""
    return f"out {group}"


def lag(group: str) -> str:
    """The series of a group's lag."""
    return f"lag {group}"


def size(broker: int) -> str:
    """The series of the bytes on a broker's disks."""
    return f"size {broker}"


def answer_time(broker: int) -> str:
    """The series of how many milliseconds a broker takes for its slowest answer to a look."""
    return f"answer {broker}"


ALL_PRODUCED = "in"
ALL_CONSUMED = "out"
ALL_LAG = "lag"
