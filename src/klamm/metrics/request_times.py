"""How long requests take, by API key: counters and a histogram that never grow, and no object per request.

Answers that are made at once are only counted, and once in a while one is timed for all that were counted
since: two readings of the clock would cost a short request one percent. Requests that wait, or that are
decoded, are timed each.

The quantiles are those of the last one to two minutes, not of all time: `turn` begins a new window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import sub

from klamm.metrics.text import Sample

BOUNDS_S = tuple(4e-6 * 2 ** (step / 4) for step in range(105))
"""The upper ends of the buckets, from 4 µs to 268 s: a quantile is wrong by a tenth at most."""

BETWEEN_TIMINGS_S = 0.001
"""The least time between two requests that are timed for those that are only counted."""

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those that Kafka's histograms have."""

WINDOW_S = 60.0

MOST_API_KEYS = 128
"""API keys are numbers below this: Kafka 4.3 has them up to 92."""

FETCH = 1


class RequestTimes:
    """The times of the requests with one API key."""

    __slots__ = ("_at_last_turn", "_at_turn_before", "_counts", "_sum_s", "due_s", "untimed")

    def __init__(self) -> None:
        self.untimed = 0
        """Requests that were answered since the last one that was timed. Callers raise it."""
        self.due_s = 0.0
        """The clock of the event loop from which on the next untimed request should be timed."""
        self._sum_s = 0.0
        self._counts = self._at_last_turn = self._at_turn_before = [0] * (len(BOUNDS_S) + 1)

    def note(self, took_s: float) -> None:
        """Count one request that took so long."""
        self._add(took_s, 1)

    def note_untimed(self, took_s: float, now_s: float) -> None:
        """Have all requests that are not timed count as one that took so long."""
        self._add(took_s, self.untimed)
        self.untimed = 0
        self.due_s = now_s + BETWEEN_TIMINGS_S

    def _add(self, took_s: float, count: int) -> None:
        counts = self._counts
        if counts is self._at_last_turn:  # it is kept as it is
            counts = self._counts = counts.copy()
        counts[bisect_left(BOUNDS_S, took_s)] += count
        self._sum_s += took_s * count

    @classmethod
    def of_all(cls, parts: Sequence[RequestTimes]) -> RequestTimes:
        """The times of several together, for reading."""
        joined = cls()
        joined.untimed = sum(each.untimed for each in parts)
        joined._sum_s = sum(each._sum_s for each in parts)
        joined._counts = [sum(column) for column in zip(*(each._counts for each in parts), strict=True)]
        before = zip(*(each._at_turn_before for each in parts), strict=True)
        joined._at_turn_before = [sum(column) for column in before]
        return joined

    @property
    def count(self) -> int:
        return sum(self._counts) + self.untimed

    @property
    def sum_s(self) -> float:
        return self._sum_s

    def turn(self) -> None:
        """Begin a new window."""
        self._at_turn_before, self._at_last_turn = self._at_last_turn, self._counts

    def quantiles_s(self, quantiles: Sequence[float] = QUANTILES) -> list[float]:
        """Of this window and the one before; NaN if there were no requests."""
        ranked = list(accumulate(map(sub, self._counts, self._at_turn_before)))
        total = ranked[-1]
        return [_at_rank(ranked, quantile * total) if total else float("nan") for quantile in quantiles]


def _at_rank(ranked: Sequence[int], rank: float) -> float:
    """The time that `rank` requests do not exceed; between the ends of a bucket they are taken as even."""
    bucket = bisect_left(ranked, rank)
    if bucket >= len(BOUNDS_S):
        return BOUNDS_S[-1]
    low = BOUNDS_S[bucket - 1] if bucket else 0.0
    before = ranked[bucket - 1] if bucket else 0
    return low + (BOUNDS_S[bucket] - low) * (rank - before) / max(ranked[bucket] - before, 1)


class TimesByApi:
    """The times of all requests of a broker. Fetches of consumers and of followers are told apart."""

    def __init__(self) -> None:
        self.of_clients = tuple(RequestTimes() for _ in range(MOST_API_KEYS))
        """By API key."""
        self.of_brokers = tuple(
            RequestTimes() if key == FETCH else times for key, times in enumerate(self.of_clients)
        )
        """The same for the listener of brokers, where fetches are those of followers."""

    def turn(self) -> None:
        for times in {*self.of_clients, *self.of_brokers}:
            times.turn()


def request_samples(name: str, request: str, times: RequestTimes) -> list[Sample]:
    """A summary in milliseconds."""
    labels = (("request", request),)
    samples = [
        Sample(name, (*labels, ("quantile", f"{quantile:g}")), took_s * 1000)
        for quantile, took_s in zip(QUANTILES, times.quantiles_s(), strict=True)
    ]
    return [
        *samples,
        Sample(f"{name}_sum", labels, times.sum_s * 1000),
        Sample(f"{name}_count", labels, times.count),
    ]
