"""Rates of the history as single numbers."""

from __future__ import annotations

from klamm.console.watching.history import History

SMOOTHED_OVER = 3
"""Looks; one look alone jumps, as many producers write in bursts."""
SPARK_POINTS = 30


def rate(history: History, name: str) -> float | None:
    """The rate now: the mean of the latest looks. None before the second look."""
    known = [value for value in history.latest(name, SMOOTHED_OVER) if value is not None]
    return sum(known) / len(known) if known else None


def spark(history: History, name: str) -> list[float | None]:
    """The latest values, each with three digits."""
    return [None if value is None else float(f"{value:.3g}") for value in history.latest(name, SPARK_POINTS)]
