"""Shows pipelines: their status as a table, as lines for logs, and the remarks beside it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from klamm.cli.showing import new_table
from klamm.pipelines.progress import PipelineStatus

_COLOURS = {"running": "green", "finished": "green", "failed": "red", "killed": "red"}
_COLOURS |= dict.fromkeys(("starting", "retrying"), "yellow")


def status_table(statuses: Sequence[PipelineStatus]) -> Table:
    """One row per pipeline."""
    table = new_table(("pipeline", "to", "state"))
    for name in ("batch", "rows in", "rows out", "rows/s", "lag", "dead letters"):
        table.add_column(name, justify="right", no_wrap=True)
    for status in statuses:
        table.add_row(
            status.pipeline,
            status.sink,
            Text(status.state, style=_COLOURS.get(status.state, "")),
            "–" if status.batch is None else str(status.batch),
            f"{status.rows_in:,}",
            f"{status.rows_out:,}",
            f"{status.rate:,.0f}",
            "–" if status.lag is None else f"{status.lag:,}",
            Text(f"{status.dead_letters:,}", style="yellow" if status.dead_letters else ""),
        )
    return table


def status_line(status: PipelineStatus) -> str:
    """A pipeline's status as one line, for logs."""
    if status.state == "retrying":
        return _retry_line(status)
    parts = [
        f"{status.pipeline}: {status.state}",
        f"batch {'–' if status.batch is None else status.batch}",
        f"{status.rows_in:,} rows in",
        f"{status.rows_out:,} out",
        f"{status.rate:,.0f}/s",
        f"lag {'–' if status.lag is None else format(status.lag, ',')}",
        f"{status.dead_letters:,} dead letters",
    ]
    return " · ".join(parts)


def remarks(statuses: Sequence[PipelineStatus]) -> list[str]:
    """Sentences beside the table: broken expectations, unknown fields, and errors."""
    lines = []
    for status in statuses:
        if status.undecodable:
            lines.append(f"{status.pipeline}: {_rows(status.undecodable)} could not be decoded")
        lines += [
            f"{status.pipeline}: {_rows(count)} broke the expectation {rule!r}"
            for rule, count in status.rules.items()
            if count
        ]
        if status.too_late:
            lines.append(
                f"{status.pipeline}: {_rows(status.too_late)} came later than the watermark allows and are "
                "missing in the result"
            )
        lines += [
            f"{status.pipeline}: records of {source} have the field {field!r}, which its schema lacks: add "
            f"it, with `klamm pipeline schema {source} --update` if the schema was inferred"
            for source, field in status.unknown_fields.items()
        ]
        if status.note:
            lines.append(f"{status.pipeline}: {status.note}")
        if status.state == "retrying":
            lines.append(_retry_line(status))
        elif status.error:
            lines.append(f"{status.pipeline} failed: {status.error}")
    return lines


def _retry_line(status: PipelineStatus) -> str:
    when = f"attempt {status.retry} of {status.retries}, next in {status.retry_in_s} s"
    return f"{status.pipeline}: retrying, {when}: {status.error}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
