"""How data is written to stdout: the option that the commands share. Cheap to import, unlike what does it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """For people, as one JSON value, or as one per line."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How data is written to stdout.")]
