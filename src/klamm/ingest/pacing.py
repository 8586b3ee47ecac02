"""When a replayed record may be sent: at a rate, or at the pace of the records' own times. A core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Pace: TypeAlias = Callable[[int, int | None], float]
"""From a record's index and its time in ms to the seconds after the start at which it may be sent."""


def unpaced(index: int, time_ms: int | None) -> float:
    """As fast as possible."""
    return 0.0


def at_rate(records_per_s: float) -> Pace:
    return lambda index, time_ms: index / records_per_s


def at_speed(factor: float) -> Pace:
    """`factor` times as fast as the records' times. Records that are late, or whose time is before that of
    the first one, are sent at once, in their order."""
    first_ms: int | None = None

    def pace(index: int, time_ms: int | None) -> float:
        nonlocal first_ms
        if time_ms is None:
            return 0.0
        if first_ms is None:
            first_ms = time_ms
        return (time_ms - first_ms) / 1000 / factor

    return pace
