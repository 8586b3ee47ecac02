"""The command `klamm`, put together from one file per noun, which is imported when the noun is used."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Noun(NamedTuple):
    """Where a noun is: an `app` with verbs, or a function that is a command by itself."""

    module: str
    name: str
    help: str


COMPLETION_VARIABLE = "_KLAMM_COMPLETE"
"""Set by a shell that asks for completions; see `klamm generate completion`."""

NOUNS = {
    "up": Noun("klamm.cli.up", "up", "Start a broker, or a cluster of --brokers on this machine."),
    "broker": Noun("klamm.cli.broker", "broker", "Start one broker of a cluster."),
    "topic": Noun("klamm.cli.topic", "app", "Topics, and the records in them."),
    "group": Noun("klamm.cli.group", "app", "Consumer groups: members, lag, offsets."),
    "config": Noun("klamm.cli.config", "app", "Settings of topics, brokers and groups."),
    "cluster": Noun("klamm.cli.cluster", "app", "The cluster: its brokers, its controller, its health."),
    "doctor": Noun("klamm.cli.doctor", "doctor", "Look for what is wrong, and say what to do."),
    "console": Noun("klamm.cli.console", "console", "Serve the web console of a cluster."),
    "generate": Noun("klamm.cli.generate", "app", "Files for other programs: shells, systemd."),
    "profile": Noun("klamm.cli.profile", "app", "Profiles: names for clusters, with addresses and settings."),
    "ingest": Noun(
        "klamm.cli.ingest", "app", "Bring files into a topic: follow logs, or send a file of records."
    ),
    "pipeline": Noun("klamm.cli.pipeline", "app", "Pipelines on Spark: from topics to tables and back."),
    "table": Noun("klamm.cli.table", "app", "Tables that pipelines write: history, differences, going back."),
}


class Nouns(TyperGroup):
    """Lists the nouns without importing them: `klamm --help` is quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        noun = NOUNS.get(cmd_name)
        return None if noun is None else TyperCommand(cmd_name, help=noun.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        noun = NOUNS.get(args[0])
        if noun is None:
            self.commands = {name: self.get_command(ctx, name) for name in NOUNS}  # for "Did you mean …?"
            return super().resolve_command(ctx, args)
        return args[0], command_of(args[0]), args[1:]


def command_of(name: str) -> Any:
    """The command or the group of commands that a noun is, imported."""
    noun = NOUNS[name]
    found = getattr(import_module(noun.module), noun.name)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    command = get_command(found)
    command.name = name
    return command


app = typer.Typer(
    name="klamm",
    cls=Nouns,
    help="Klamm: an event-streaming platform that speaks Kafka's wire protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Klamm: an event-streaming platform that speaks Kafka's wire protocol."""


def main() -> None:
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    app()
