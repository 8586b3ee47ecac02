"""Writes records to stdout, batch by batch: by a format, one JSON value a line, or one JSON array."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from klamm.cli.output import Output
from klamm.cli.records.formats import Render
from klamm.client.results import Record
from klamm.operating.records.as_json import as_json, json_lines


def write_as(output: Output, render: Render, batches: Iterator[Sequence[Record]]) -> None:
    """`render` is for the output that is neither JSON nor JSON lines."""
    if output is Output.JSON:
        _write_array(batches)
        return
    write = json_lines if output is Output.JSONL else render
    out = sys.stdout.buffer
    for batch in batches:
        out.write(write(batch))
        out.flush()


def _write_array(batches: Iterator[Sequence[Record]]) -> None:
    out = sys.stdout
    divider = "[\n"
    try:
        for batch in batches:
            for record in batch:
                out.write(divider + json.dumps(as_json(record), ensure_ascii=False, indent=2))
                divider = ",\n"
            out.flush()
    finally:  # also after Ctrl-C
        out.write("[]\n" if divider == "[\n" else "\n]\n")
