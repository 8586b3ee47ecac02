"""`klamm generate …`: files for other programs, written to stdout."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from klamm.cli.connecting import complaints

app = typer.Typer(
    help="Files for other programs: shells, systemd, Grafana.", no_args_is_help=True, add_completion=False
)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.callback()
def root() -> None:
    """Files for other programs: shells, systemd, Grafana."""


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a script that completes commands, topics, groups, profiles and settings.

    bash: source <(klamm generate completion bash), in ~/.bashrc. zsh: the same, in ~/.zshrc, after compinit.
    fish: klamm generate completion fish > ~/.config/fish/completions/klamm.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from klamm.cli.main import COMPLETION_VARIABLE

    sys.stdout.write(
        get_completion_script(prog_name="klamm", complete_var=COMPLETION_VARIABLE, shell=shell.value) + "\n"
    )


@app.command()
def grafana_dashboard() -> None:
    """Print a dashboard of the brokers' metrics, for Grafana's import (docs/METRICS.md)."""
    import json

    from klamm.cli.grafana import dashboard

    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def systemd(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="The command to run with its options, such as: broker --id 1 --coordination zookeeper://zk:2181",
            show_default="up",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="The user that runs it.", show_default="a user of its own that systemd makes"),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            help="The folder that it runs in: of a project for `pipeline`.", show_default="/var/lib/klamm"
        ),
    ] = None,
) -> None:
    """Print a unit that runs a command as a service: up, broker, console, pipeline run or ingest tail."""
    with complaints():
        from klamm.cli.systemd import program, unit

        sys.stdout.write(unit(program(), words or ["up"], user, directory))
