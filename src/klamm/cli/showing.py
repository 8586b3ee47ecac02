"""Writes data to stdout: tables for users, JSON for programs."""

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

from klamm.cli.output import Output
from klamm.operating.units import printable

WIDE = 10_000
"""The width of output that is not a terminal: lines are not wrapped, as programs read them."""

LONGEST_CELL = 60
"""The most characters of a table's cell. Longer values are cut; JSON has them whole."""


def console(*, stderr: bool = False) -> Console:
    """A console on the present stdout or stderr; off a terminal it wraps no lines.

    A stream that stands for a terminal elsewhere says how wide that is, and which colours it has."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty() and hasattr(stream, "colours"):
        width = getattr(stream, "width", None)
        return Console(
            file=stream, width=width, color_system=stream.colours, force_terminal=True, highlight=False
        )
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
        table = new_table(columns)
        for row in rows:
            table.add_row(*[_cell(value) for value in row])
        console().print(table)
        return
    write_values([dict(zip(columns, row, strict=True)) for row in rows], output)


def new_table(columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    return table


def _cell(value: object) -> Text:
    """A value as it is: rich takes [words] in a plain string for its markup."""
    if value is None:
        return Text("–")
    if isinstance(value, (str, datetime, date)):
        text = str(value)
    elif isinstance(value, (dict, list, tuple)):
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    else:
        text = str(_plain(value))
    text = printable(text)
    return Text(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


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
