"""When a replayed record may go: at a rate, or at the pace that the records' own times show. A core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Pace: TypeAlias = Callable[[int, int | None], float]
"""From a record's index and its time in milliseconds to the seconds after the start when it may go."""


def unpaced(index: int, time_ms: int | None) -> float:
    """As quickly as it can be."""
    return 0.0


def at_rate(records_per_s: float) -> Pace:
    return lambda index, time_ms: index / records_per_s


def at_speed(factor: float) -> Pace:
    """`factor` times as quickly as it happened. A record whose time lies before the first's goes at once;
    so do all that are late, since order is kept."""
    first_ms: int | None = None

    def pace(index: int, time_ms: int | None) -> float:
        nonlocal first_ms
        if time_ms is None:
            return 0.0
        if first_ms is None:
            first_ms = time_ms
        return (time_ms - first_ms) / 1000 / factor

    return pace
