"""Findings, the graph, replay plans and schema updates: as sentences for users, and as values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.pipelines.errors import Place
from klamm.pipelines.findings import Finding
from klamm.pipelines.outline import Outline
from klamm.pipelines.positions import TABLE_PREFIX, is_table
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
        return f"{project.name}: no errors or warnings"
    return f"{project.name}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}"


# ---- the graph


def graph_rows(outline: Outline) -> list[tuple[str, str, str, int, str | None]]:
    """What each pipeline reads, its name, what it writes, its rules, and where rows go that break one."""
    return [
        (
            ", ".join((*each.topics, *(f"table {read.name}" for read in each.tables))),
            each.name,
            f"{each.sink} {each.target}",
            len(each.rules),
            outline.dead_letters if each.writes_dead_letters else None,
        )
        for each in outline.pipelines
    ]


# ---- replay


def plan_lines(plan: ReplayPlan) -> Iterator[str]:
    yield f"{plan.pipeline} → {plan.sink}"
    for source, position in plan.start.items():
        for topic, partitions in position.items():
            if is_table(topic):
                name = topic.removeprefix(TABLE_PREFIX)
                yield f"  {source} reads all rows of version {partitions['snapshot']} of the table {name}"
            else:
                yield f"  {source} reads {topic} again from {_offsets(partitions)}"
    if plan.rebuilds:
        what = f"{plan.replaced_rows:,} rows of the table are replaced in one commit"
        yield f"  {what}, when all new ones are written"
    for warning in plan.warnings:
        yield f"  warning: {warning}"


def plan_value(plan: ReplayPlan, carried_out: bool) -> dict[str, Any]:
    return {**asdict(plan), "carried_out": carried_out}


def _offsets(partitions: Mapping[str, int]) -> str:
    """Offsets by partition; -2 stands for the first record."""
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
        yield f"{'added' if update.written else 'new'}: {field}"
    for sentence in update.differing:
        yield f"not changed: {sentence}"
    if update.written and update.file is not None:
        yield f"wrote {_from_here(update.file)}: review it, and commit it"
    elif update.added:
        yield f"the schema of {update.source} is in the code: add the fields there"
    elif not update.differing:
        yield f"{update.source}: the newest records have no new fields"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _from_here(file: Path) -> Path:
    """The path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
