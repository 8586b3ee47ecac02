"""`klamm pipeline redrive` without --to-topic: brings dead-letter records into tables, or to retry topics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from klamm.pipelines.definitions import Definitions, Pipeline
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.originals import Redriven
from klamm.pipelines.project import Project
from klamm.pipelines.redrive import redrive as send_back
from klamm.pipelines.redrive_to_table import NO_BATCH, redrive_to_table, why_not
from klamm.pipelines.retry.redriving import redrive_through_topic, why_not_retried
from klamm.pipelines.runner import make_session
from klamm.pipelines.spark_sessions import session_meanwhile
from klamm.pipelines.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def redrive_pipelines(
    project: Project, pipeline: str | None, rule: str | None, dry_run: bool, is_confirmed: Callable[[], bool]
) -> dict[str, Any]:
    """Redrive the dead-letter records of one pipeline or all. Returns what was done, by pipeline."""
    definitions = load_definitions(project)
    pipelines = definitions.pipelines
    if pipeline is not None and pipeline not in pipelines:
        raise ProjectError(
            f"there is no pipeline called {pipeline!r}", advice=f"There are {', '.join(pipelines)}"
        )
    with ExitStack() as stack:
        session = _Session(project, stack)
        counted: dict[str, Redriven] = {}
        into_table: set[str] = set()
        for name, node in pipelines.items():
            if pipeline not in (None, name):
                continue
            reason = why_not(project, node)
            if not reason:
                into_table.add(name)
                counted[name] = redrive_to_table(project, name, rule=rule, dry_run=True)
                _say(f"{name}: {counted[name].total:,} dead-letter records to redrive into its table")
            elif later := _why_later(project, node, definitions, reason):
                waiting = send_back(project, pipeline=name, rule=rule, dry_run=True).total
                if waiting:
                    _say(f"{name}: {waiting:,} dead-letter records wait: {later}; --to-topic sends them back")
                continue
            else:
                counted[name] = redrive_through_topic(project, name, rule=rule, dry_run=True, session=session)
                total = counted[name].total
                _say(f"{name}: {total:,} dead-letter records to send to its retry topic: {reason}")
            for line in _details(counted[name]):
                _say(f"{name}: {line}")
        names = [name for name, found in counted.items() if found.total]
        if names and not dry_run and is_confirmed():
            for name in names:
                late = counted[name].late
                if name in into_table:
                    done = redrive_to_table(project, name, rule=rule, spark=session())
                    where = f"what is still bad is in {project.dead_letters}"
                    what = f"redriven, {done.rows:,} rows written; {where}"
                else:
                    done = redrive_through_topic(project, name, rule=rule)
                    is_running = State(project).in_use()
                    what = f"sent; {'the run' if is_running else 'the next run'} reads them"
                done.late = late
                counted[name] = done
                _say(f"{name}: {done.total:,} {what}")
    return {name: found.to_json() for name, found in counted.items()}


class _Session:
    """A Spark session that is started when it is needed first."""

    def __init__(self, project: Project, stack: ExitStack) -> None:
        self._project = project
        self._stack = stack
        self._spark: SparkSession | None = None

    def __call__(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._stack.enter_context(session_meanwhile(self._project, make_session))
        return self._spark


def _why_later(project: Project, node: Pipeline, definitions: Definitions, reason: str) -> str:
    """Why the dead-letter records of a pipeline have to wait, which cannot go into its table for a reason."""
    return reason if reason == NO_BATCH else why_not_retried(project, node, definitions)


def _details(found: Redriven) -> list[str]:
    lines = [f"{count:,} cannot be redriven: {reason}" for reason, count in found.kept.items()]
    lines += [f"{count:,} wait: {reason}" for reason, count in found.waiting.items()]
    if found.of_rows:
        lines.append(
            f"{found.of_rows:,} broke an expectation of a transform or pipeline: other rows of the same "
            "original record will be written again"
        )
    if found.late and found.watermark_ms is not None:
        watermark = datetime.fromtimestamp(found.watermark_ms / 1000, UTC)
        lines.append(
            f"{found.late:,} are older than the watermark, {watermark:%Y-%m-%d %H:%M:%S} UTC: joins, and "
            "windows that are closed, drop them, and `klamm pipeline status` counts what is dropped. A "
            "replay from earliest reads them in their place"
        )
    return lines


def _say(text: str) -> None:
    typer.echo(text, err=True)
