"""What commands that destroy or change much ask first: --yes, --dry-run, and a question on the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]


def confirmed(yes: bool, question: str) -> bool:
    """True if the user confirms. Without a terminal only --yes confirms."""
    if yes:
        return True
    if not sys.stdin.isatty():
        typer.echo("klamm: nothing was done: there is no terminal to ask on; confirm with --yes", err=True)
        raise typer.Exit(1)
    return typer.confirm(question, err=True)
