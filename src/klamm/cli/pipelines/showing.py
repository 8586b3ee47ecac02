"""Writes data: tables and lines for users, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from klamm.cli.pipelines.output import Output
from klamm.pipelines.progress import PipelineStatus

WIDE = 10_000
"""The width of output that is not a terminal: lines are not wrapped, as programs read them."""

LONGEST_CELL = 60
"""The most characters of a table's cell. Longer values are cut; JSON has them whole."""

_COLOURS = {"running": "green", "finished": "green", "failed": "red", "killed": "red", "starting": "yellow"}


def console(*, stderr: bool = False) -> Console:
    """A console on the present stdout or stderr; off a terminal it wraps no lines."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDE, highlight=False, soft_wrap=False)


def write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")


def write_values(values: Sequence[object], output: Output) -> None:
    """Write values to stdout: as one JSON array, or one per line."""
    if output is Output.JSON:
        write_json(values)
        return
    for value in values:
        sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")


def write_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], output: Output) -> None:
    """Write rows to stdout."""
    if output is Output.TABLE:
        table = _table(columns)
        for row in rows:
            table.add_row(*[_cell(value) for value in row])
        console().print(table)
        return
    write_values([dict(zip(columns, row, strict=True)) for row in rows], output)


# ---- pipelines


def status_table(statuses: Sequence[PipelineStatus]) -> Table:
    """One row per pipeline."""
    table = _table(("pipeline", "to", "state"))
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
        lines += [
            f"{status.pipeline}: records of {source} have the field {field!r}, which its schema lacks: add "
            f"it, with `klamm pipeline schema {source} --update` if the schema was inferred"
            for source, field in status.unknown_fields.items()
        ]
        if status.note:
            lines.append(f"{status.pipeline}: {status.note}")
        if status.error:
            lines.append(f"{status.pipeline} failed: {status.error}")
    return lines


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    return table


# ---- values of Spark


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, (str, datetime, date)):
        text = str(value)
    elif isinstance(value, (dict, list, tuple)):
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    else:
        text = str(_plain(value))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def _plain(value: object) -> object:
    """A value that JSON does not have, as text."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
