"""What is found, planned or changed, in sentences for people and as values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.pipelines.errors import Place
from klamm.pipelines.findings import Finding
from klamm.pipelines.project import Project

if TYPE_CHECKING:
    from klamm.pipelines.replay import ReplayPlan
    from klamm.pipelines.schemas.resolving import SchemaUpdate


# ---- lint


def finding_line(finding: Finding) -> str:
    return str(finding._replace(place=Place(_from_here(finding.place.file), finding.place.line)))


def finding_value(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "file": str(finding.place.file),
        "line": finding.place.line,
        "what": finding.what,
        "advice": finding.advice,
    }


def findings_summary(project: Project, findings: Sequence[Finding]) -> str:
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    if not findings:
        return f"{project.name}: nothing to complain of"
    return f"{project.name}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}"


# ---- replay


def plan_lines(plan: ReplayPlan) -> Iterator[str]:
    yield f"{plan.pipeline} → {plan.sink}"
    for source, position in plan.start.items():
        for topic, partitions in position.items():
            yield f"  {source} begins again in {topic} at {_offsets(partitions)}"
    if plan.retired:
        folders = _counted(len(plan.retired), "folder")
        yield f"  {plan.retired_rows:,} rows in {folders} are taken out of the table, and made anew"
    for warning in plan.warnings:
        yield f"  beware: {warning}"


def plan_value(plan: ReplayPlan, carried_out: bool) -> dict[str, Any]:
    return {**asdict(plan), "carried_out": carried_out}


def _offsets(partitions: Mapping[str, int]) -> str:
    """Offsets by partition; -2 is where Spark finds the first record there is."""
    shown = {
        number: "the first record" if offset < 0 else f"offset {offset}"
        for number, offset in partitions.items()
    }
    if len(set(shown.values())) == 1:
        only = next(iter(shown.values()))
        return only if len(shown) == 1 else f"{only} of all {len(shown)} partitions"
    return ", ".join(f"{text} of partition {number}" for number, text in sorted(shown.items(), key=_number))


def _number(item: tuple[str, str]) -> int:
    return int(item[0])


# ---- schemas


def update_lines(update: SchemaUpdate) -> Iterator[str]:
    for field in update.added:
        yield f"{'added' if update.written else 'not known'}: {field}"
    for sentence in update.differing:
        yield f"stays as it is: {sentence}"
    if update.written and update.file is not None:
        yield f"{_from_here(update.file)} is written: look it over, and keep it with the code"
    elif update.added:
        yield f"the schema of {update.source} stands in the code: add them there"
    elif not update.differing:
        yield f"{update.source}: the newest records have nothing new"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _from_here(file: Path) -> Path:
    """As somebody in this folder would name it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
