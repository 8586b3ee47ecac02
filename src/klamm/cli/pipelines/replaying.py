"""`klamm pipeline replay --to`: replaces the rows of a range of records while the pipeline runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import typer

from klamm.cli.output import Output
from klamm.cli.showing import write_json
from klamm.pipelines.project import Project
from klamm.pipelines.replay_range import RangePlan, carry_out_range, plan_range
from klamm.pipelines.tables.ranges import each_range


def replay_range(
    project: Project,
    pipeline: str,
    from_: str,
    to: str,
    dry_run: bool,
    is_confirmed: Callable[[], bool],
    output: Output,
) -> None:
    """Show what the replay would do, and do it."""
    planned = plan_range(project, pipeline, from_, to)
    for line in range_lines(planned):
        _say(line)
    done = carry_out_range(project, planned) if not dry_run and is_confirmed() else None
    if output is not Output.TABLE:
        rows = None if done is None else done._asdict()
        write_json({**asdict(planned), "carried_out": done is not None, "done": rows})
    if done is not None:
        _say(f"The table has {done.rows:,} new rows in place of {done.replaced:,}.")


def range_lines(plan: RangePlan) -> Iterator[str]:
    yield f"{plan.pipeline} → {plan.sink}"
    for topic, partition, each in sorted(each_range(plan.ranges)):
        yield f"  reads offsets {each.start} to {each.end - 1} of {topic}-{partition} again"
    yield (
        f"  {plan.replaced_rows:,} rows of the table are replaced in one commit, when those of these "
        f"{plan.records:,} records are written; the pipeline may run meanwhile"
    )
    for warning in plan.warnings:
        yield f"  warning: {warning}"


def _say(text: str) -> None:
    typer.echo(text, err=True)
