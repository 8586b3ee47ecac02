"""The findings of lint: a line of the user's files, what is wrong there, and what to do. A core."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from klamm.pipelines.errors import PipelineError, Place

Severity: TypeAlias = Literal["error", "warning"]


class Finding(NamedTuple):
    """An error keeps a pipeline from running, or makes it run wrongly. A warning may be intended."""

    severity: Severity
    place: Place
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.what}{f'. {self.advice}' if self.advice else ''}"


def finding_of(error: PipelineError, fallback: Place, severity: Severity = "error") -> Finding:
    """A raised error as a finding; `fallback` is its place if the error has none."""
    return Finding(severity, error.place or fallback, error.message, error.advice)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sorted by file and line, without duplicates."""
    return sorted(
        dict.fromkeys(findings), key=lambda one: (str(one.place.file), one.place.line, one.severity)
    )
