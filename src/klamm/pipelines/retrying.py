"""When a pipeline that has failed is started again, and when it is given up. A core: callers pass the time.

A pipeline is tried again after pauses that double up to MOST_PAUSE_MS, as often as `[run] retries` says. Once
it has finished a batch, or has run for CALM_MS without one, its failures are counted anew.

Failures that the next try would only repeat are not tried again (`heals`): an expectation with
otherwise="fail", rows or keys that the table refuses, a definition or a plan that is wrong, a table that
cannot be read as a stream any more, and a batch that another run has committed. Any other error of a batch
is: nobody can tell a function with a mistake from one that asked a service which was away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

OnFailure: TypeAlias = Literal["stop", "go on"]
ON_FAILURE: tuple[OnFailure, ...] = ("stop", "go on")

FIRST_PAUSE_MS = 1000
"""The pause before the first retry. Each further pause is twice as long."""

MOST_PAUSE_MS = 60_000
"""No pause is longer: a broker or a store that is back should not have to wait."""


CALM_MS = 600_000
"""A pipeline that has run so long has not failed by what it failed by before, even if no record came: else
some outages of a broker in a quiet week would end the run. Longer than a start waits for brokers."""


@dataclass(frozen=True)
class RunPolicy:
    """[run] of klamm.toml: what a run does when a pipeline fails."""

    retries: int = 3
    """How often a failed pipeline is started again before it is given up."""
    on_failure: OnFailure = "stop"
    """What happens to the other pipelines when one is given up."""


class Retry(NamedTuple):
    """A retry that is waited for: the `number`th, at `at_ms`."""

    number: int
    at_ms: int


class Retries:
    """The retries of one pipeline."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._batch: int | None = None
        self._begun_ms: int | None = None
        """When the last retry began."""
        self.waiting: Retry | None = None

    def failed(self, now_ms: int, batch: int | None) -> Retry | None:
        """The retry to wait for after a failure; None if there is none left. `batch` is the last batch that
        the pipeline has finished."""
        is_calm = self._begun_ms is not None and now_ms - self._begun_ms >= CALM_MS
        if batch != self._batch or is_calm:
            self._used = 0
        self._batch = batch
        if self._used >= self._most:
            return None
        self.waiting = Retry(self._used + 1, now_ms + pause_ms(self._used + 1))
        return self.waiting

    def begun(self) -> None:
        """The retry that was waited for begins."""
        assert self.waiting is not None, "a retry begins after it was waited for"
        self._used, self._begun_ms = self.waiting
        self.waiting = None

    def is_due(self, now_ms: int) -> bool:
        return self.waiting is not None and now_ms >= self.waiting.at_ms


def pause_ms(number: int) -> int:
    """The pause before the retry of this number; the first one is 1."""
    doublings = min(number - 1, MOST_PAUSE_MS.bit_length())  # more would make huge numbers
    return min(MOST_PAUSE_MS, FIRST_PAUSE_MS << doublings)


_FOR_GOOD = re.compile(
    r"\[USER_RAISED_EXCEPTION\]"
    r"|\bklamm\.pipelines\.[\w.]*\b(?:BatchCommittedElsewhere|TableRefused|KeysRefused|ParquetRefused|CannotRead"
    r"|DefinitionError|SchemaError|GraphError|CannotGoOn|PipelineError): "
)


def heals(report: str) -> bool:
    """False if the next try would fail in the same way, by Spark's report of a failed query."""
    return _FOR_GOOD.search(report) is None
