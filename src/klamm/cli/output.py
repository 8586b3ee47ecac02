"""The option --output, which the commands share. Cheap to import, unlike the code that writes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """A table for users, one JSON value, or one JSON value per line."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How data is written to stdout.")]
