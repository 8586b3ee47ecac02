"""The published figures: docs/benchmarks/figures.json, from which the pages and the picture are made.

A run replaces the sections that it was asked for and measured without a failure; the figures of all other
sections stay. So a part of the bench can be run again, and the pages and the picture still show everything.
Each section notes when and on which machine it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from bench.runner import Results

FILE = Path("docs/benchmarks/figures.json")
_SIGNIFICANT_DIGITS = 8


class Measured(NamedTuple):
    """When, in how many rounds and on which machine a section was measured."""

    taken_at: str
    machine: dict[str, Any]


class Published(NamedTuple):
    """The figures of all sections, and when each section was measured."""

    results: Results
    measured: dict[str, Measured]


def load(path: Path = FILE) -> Published:
    published = Published(Results(), {})
    if path.exists():
        for section, content in json.loads(path.read_text()).items():
            published.measured[section] = Measured(content["taken_at"], content["machine"])
            for figure in content["figures"]:
                published.results.rounds[section, figure["case"], figure["metric"]] = figure["rounds"]
    return published


def save(published: Published, path: Path = FILE) -> None:
    """Write one figure per line, so that a difference between two runs can be read."""
    sections = []
    for section, measured in published.measured.items():
        figures = [
            json.dumps({"case": case, "metric": metric, "rounds": _rounded(rounds)}, ensure_ascii=False)
            for (of, case, metric), rounds in published.results.rounds.items()
            if of == section
        ]
        head = f'"taken_at": {json.dumps(measured.taken_at)}, "machine": {json.dumps(measured.machine)}'
        lines = ",\n  ".join(figures)
        sections.append(f'{json.dumps(section)}: {{{head}, "figures": [\n  {lines}]}}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(sections) + "}\n")


def merge(old: Published, new: Results, measured: Measured, asked_for: Collection[str]) -> Published:
    """`old` with the figures of a run.

    A section in `asked_for` is replaced as a whole, or left as it was if one of its measurements failed. In
    any other section that the run touched, only the cases that it measured are replaced.
    """
    failed = {failure.partition(":")[0] for failure in new.failures}
    fresh = {key: rounds for key, rounds in new.rounds.items() if key[0] not in failed}
    replaced = {section for section, _, _ in fresh} & set(asked_for)
    results = Results()
    for key, rounds in old.results.rounds.items():
        if key in fresh or key[0] not in replaced:
            results.rounds[key] = fresh.pop(key, rounds)
    results.rounds.update(fresh)
    times = {**old.measured, **dict.fromkeys(replaced, measured)}
    return Published(results, {section: times.get(section, measured) for section, _, _ in results.rounds})


def _rounded(rounds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {
        name: [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in values]
        for name, values in rounds.items()
    }
