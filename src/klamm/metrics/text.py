"""Prometheus's text format 0.0.4: families of samples, each with its help and its type.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """What all lines of one metric have in common. `kind` is counter, gauge, summary or histogram."""

    name: str
    kind: str
    help: str

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"


def label(value: str) -> str:
    """A label's value as it stands between quotes. Names of groups are whatever a client chose."""
    if value.isalnum():  # nearly all of them
        return value
    return value.translate(_ESCAPES).encode(errors="replace").decode()


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def line(sample: Sample) -> str:
    name, labels, value = sample
    if not labels:
        return f"{name} {number(value)}\n"
    inner = ",".join(f'{key}="{label(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {number(value)}\n"


def lines(samples: Iterable[Sample]) -> str:
    return "".join(map(line, samples))
