"""How long to wait before trying again. A core: the caller passes the time and a random number."""

from __future__ import annotations

JITTER = 0.2
"""Pauses vary by up to this share, so that clients that failed at the same time do not retry at the same
time."""

_MOST_DOUBLINGS = 30
"""After so many doublings every pause is at its longest, and the power of two must not overflow."""


class Backoff:
    """Pauses that double from the first to the longest."""

    __slots__ = ("first_seconds", "longest_seconds")

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.first_seconds = first_seconds
        self.longest_seconds = max(longest_seconds, first_seconds)

    def pause(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` in a row (1 after the first); `chance` is a random number from 0
        to 1.
        """
        doubled = self.first_seconds * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return min(doubled, self.longest_seconds) * (1 - JITTER + 2 * JITTER * chance)


class Health:
    """Whether the latest attempt to connect to a broker failed, and when it may be tried again."""

    __slots__ = ("failures", "not_before", "reason")

    def __init__(self) -> None:
        self.failures = 0
        self.not_before = 0.0
        self.reason: Exception | None = None
        """Why the latest attempt failed; None if it succeeded."""

    def failed(self, now: float, backoff: Backoff, chance: float, reason: Exception) -> None:
        self.failures += 1
        self.reason = reason
        self.not_before = now + backoff.pause(self.failures, chance)

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before = 0.0
        self.reason = None

    def wait(self, now: float) -> float:
        """Seconds until the broker may be tried again."""
        return max(self.not_before - now, 0.0)
