"""How long to wait before trying again. A core: time and chance come from outside."""

from __future__ import annotations

JITTER = 0.2
"""Pauses differ by up to this share, so that clients which failed together do not come back together."""

_MOST_DOUBLINGS = 30
"""Beyond this every pause is at its longest anyway, and the power would overflow some day."""


class Backoff:
    """Pauses that double from the first to the longest."""

    __slots__ = ("first_seconds", "longest_seconds")

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.first_seconds = first_seconds
        self.longest_seconds = max(longest_seconds, first_seconds)

    def pause(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` in a row (1 is the first); `chance` is from 0 to 1."""
        doubled = self.first_seconds * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return min(doubled, self.longest_seconds) * (1 - JITTER + 2 * JITTER * chance)


class Health:
    """Whether a broker could be reached lately, and from when on it may be tried again."""

    __slots__ = ("failures", "not_before", "reason")

    def __init__(self) -> None:
        self.failures = 0
        self.not_before = 0.0
        self.reason: Exception | None = None
        """Why it could not be reached the last time."""

    def failed(self, now: float, backoff: Backoff, chance: float, reason: Exception) -> None:
        self.failures += 1
        self.reason = reason
        self.not_before = now + backoff.pause(self.failures, chance)

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before = 0.0
        self.reason = None

    def wait(self, now: float) -> float:
        """Seconds until it may be tried again."""
        return max(self.not_before - now, 0.0)
