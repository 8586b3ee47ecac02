"""`klamm pipeline redrive` without --to-topic: brings dead-letter records into tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from klamm.pipelines.redrive import Redriven
from klamm.pipelines.redrive import redrive as send_back
from klamm.pipelines.redrive_to_table import redrive_to_table, why_not


def redrive_tables(
    project: Project, pipeline: str | None, rule: str | None, dry_run: bool, is_confirmed: Callable[[], bool]
) -> dict[str, Any]:
    """Redrive the dead-letter records of one pipeline or all. Returns what was done, by pipeline."""
    pipelines = load_definitions(project).pipelines
    if pipeline is not None and pipeline not in pipelines:
        raise ProjectError(
            f"there is no pipeline called {pipeline!r}", advice=f"There are {', '.join(pipelines)}"
        )
    counted: dict[str, Redriven] = {}
    for name, node in pipelines.items():
        if pipeline not in (None, name):
            continue
        if reason := why_not(project, node):
            waiting = send_back(project, pipeline=name, rule=rule, dry_run=True).total
            if waiting:
                _say(f"{name}: {waiting:,} dead-letter records wait: {reason}; --to-topic sends them back")
            continue
        counted[name] = redrive_to_table(project, name, rule=rule, dry_run=True)
        count = counted[name].total
        _say(f"{name}: {count:,} dead-letter records to redrive into its table")
        for kept_reason, kept in counted[name].kept.items():
            _say(f"{name}: {kept:,} cannot be redriven: {kept_reason}")
        if counted[name].of_rows:
            _say(
                f"{name}: {counted[name].of_rows:,} broke an expectation of a transform or pipeline: other "
                "rows of the same original record will be written again"
            )
    names = [name for name, found in counted.items() if found.total]
    if names and not dry_run and is_confirmed():
        for name in names:
            counted[name] = redrive_to_table(project, name, rule=rule)
            done = counted[name]
            where = f"what is still bad is in {project.dead_letters}"
            _say(f"{name}: {done.total:,} redriven, {done.rows:,} rows written; {where}")
    return {name: found.to_json() for name, found in counted.items()}


def _say(text: str) -> None:
    typer.echo(text, err=True)
