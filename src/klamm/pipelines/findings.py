"""What lint finds: a line of the user's, what is wrong there, and what to do. A core."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from klamm.pipelines.errors import PipelineError, Place

Severity: TypeAlias = Literal["error", "warning"]


class Finding(NamedTuple):
    """An error keeps a pipeline from running, or from running right; a warning is for a person to judge."""

    severity: Severity
    place: Place
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.what}{f'. {self.advice}' if self.advice else ''}"


def finding_of(error: PipelineError, fallback: Place, severity: Severity = "error") -> Finding:
    """An error that was raised, as something found; `fallback` is its place if it has none."""
    return Finding(severity, error.place or fallback, error.message, error.advice)


def in_order(findings: list[Finding]) -> list[Finding]:
    """By file and line, each once."""
    return sorted(
        dict.fromkeys(findings), key=lambda one: (str(one.place.file), one.place.line, one.severity)
    )
