"""Whether a group catches up, from its lag over the last minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from klamm.console.watching.history import Point

WINDOW_MS = 90_000
"""Only the latest values say how it goes on."""
WINDOW_POINTS = 20
LEAST_SPAN_MS = 8_000
LEAST_CHANGE = 0.5
"""Records per second; less than this is as good as no change."""


class Trend(StrEnum):
    """What a group's lag does."""

    UNKNOWN = "unknown"
    CAUGHT_UP = "caught up"
    CATCHING_UP = "catching up"
    FALLING_BEHIND = "falling behind"
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Pace:
    """How a group's lag changes: by `per_s` records per second, and when it is 0 if it goes on like this."""

    trend: Trend
    per_s: float = 0.0
    seconds_left: float | None = None


def pace(points: Sequence[Point], lag: int | None) -> Pace:
    """The pace of a group whose lag was `points`, and is `lag` now. A straight line through the points."""
    if lag is None:
        return Pace(Trend.UNKNOWN)
    known = [(time, value) for time, value in points if value is not None]
    if known:
        newest = known[-1][0]
        known = [(time, value) for time, value in known if newest - time <= WINDOW_MS]
    if lag == 0:
        return Pace(Trend.CAUGHT_UP)
    if len(known) < 3 or known[-1][0] - known[0][0] < LEAST_SPAN_MS:
        return Pace(Trend.UNKNOWN)
    slope = _slope([((time - known[0][0]) / 1000, value) for time, value in known])
    if slope <= -LEAST_CHANGE:
        return Pace(Trend.CATCHING_UP, slope, lag / -slope)
    if slope >= LEAST_CHANGE:
        return Pace(Trend.FALLING_BEHIND, slope)
    return Pace(Trend.STEADY, slope)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    count = len(points)
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
