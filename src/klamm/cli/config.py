"""`klamm config …`: settings of topics, brokers and groups: look, set, unset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.asking import DryRunOption
from klamm.cli.completing import group_names, topic_names
from klamm.cli.connecting import Cluster, pairs, with_cluster
from klamm.cli.errors import CommandError
from klamm.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin
    from klamm.client.admin.types import ConfigResource
    from klamm.operating.configs import Setting

ALL_BROKERS = "all"
"""The name that stands for the settings of all brokers."""


class Kind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


def _names(ctx: Any, incomplete: str) -> list[str]:
    kind = ctx.params.get("kind")
    if kind == Kind.TOPIC:
        return topic_names(ctx, incomplete)
    return group_names(ctx, incomplete) if kind == Kind.GROUP else []


app = typer.Typer(help="Settings of topics, brokers and groups.", no_args_is_help=True, add_completion=False)

KindArgument = Annotated[Kind, typer.Argument(help="Whose settings.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="A topic, a group (patterns in quotes), the id of a broker, or `all` for all brokers.",
        autocompletion=_names,
    ),
]


@app.callback()
def root() -> None:
    """Settings of topics, brokers and groups."""


@app.command()
@with_cluster
def get(
    cluster: Cluster,
    kind: KindArgument,
    name: NameArgument,
    keys: Annotated[list[str] | None, typer.Argument(help="Only these settings.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show settings: where each is set, and what it is for. Secrets are hidden."""
    from klamm.cli.showing import write_rows, write_values

    found = cluster.run(lambda admin: _look(admin, kind, name, keys))
    if changed:
        found = [each for each in found if not each.is_default]
    if output is not Output.TABLE:
        write_values([_as_value(each, kind) for each in found], output)
        return
    several = len({each.resource for each in found}) > 1
    rows = [
        (*([each.resource.name] if several else []), each.name, _shown(each), each.source, _marks(each))
        for each in found
    ]
    write_rows((*([kind.value] if several else []), "setting", "value", "set in", ""), rows, output)
    for each in found if keys else ():
        if each.documentation:
            typer.echo(f"\n{each.name}: {each.documentation}")


@app.command("set")
@with_cluster
def set_(
    cluster: Cluster,
    kind: KindArgument,
    name: NameArgument,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="The new values.")],
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set settings: all of a topic's, broker's or group's, or none. --dry-run asks the brokers whether they
    would."""
    _change(cluster, kind, name, pairs(values, "setting"), (), dry_run, output)


@app.command()
@with_cluster
def unset(
    cluster: Cluster,
    kind: KindArgument,
    name: NameArgument,
    keys: Annotated[list[str], typer.Argument(help="The settings to put back to their defaults.")],
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put settings back to their defaults."""
    _change(cluster, kind, name, {}, keys, dry_run, output)


async def _resources(admin: Admin, kind: Kind, name: str) -> list[ConfigResource]:
    from klamm.cli.naming import chosen_names, is_pattern
    from klamm.client.admin.types import ConfigResource

    if kind is Kind.BROKER:
        if name == ALL_BROKERS:
            return [ConfigResource.all_brokers()]
        if not name.isdigit():
            raise CommandError(f"{name} is not the id of a broker: expected a number, or {ALL_BROKERS}")
        return [ConfigResource.broker(int(name))]
    make = ConfigResource.topic if kind is Kind.TOPIC else ConfigResource.group
    there: list[str] = []
    if is_pattern(name):
        there = (
            await admin.list_topics(include_internal=True)
            if kind is Kind.TOPIC
            else [each.group for each in await admin.list_groups()]
        )
    return [make(each) for each in chosen_names([name], there, kind.value)]


async def _look(admin: Admin, kind: Kind, name: str, keys: Sequence[str] | None) -> list[Setting]:
    from klamm.operating.configs import settings_of

    return await settings_of(admin, await _resources(admin, kind, name), keys or None)


def _change(
    cluster: Cluster,
    kind: Kind,
    name: str,
    set_: Mapping[str, str],
    unset: Sequence[str],
    dry_run: bool,
    output: Output,
) -> None:
    from klamm.cli.showing import write_values
    from klamm.operating.configs import change
    from klamm.operating.units import printable

    async def do(admin: Admin) -> list[ConfigResource]:
        resources = await _resources(admin, kind, name)
        await change(admin, resources, set_, unset, validate_only=dry_run)
        return resources

    resources = cluster.run(do)
    if output is Output.TABLE:
        done = "would change" if dry_run else "changed"
        for each in resources:
            typer.echo(f"{done} {printable(str(each))}")
        return
    write_values(
        [{kind.value: each.name or ALL_BROKERS, "changed": not dry_run} for each in resources], output
    )


def _as_value(each: Setting, kind: Kind) -> dict[str, Any]:
    return {
        kind.value: each.resource.name or ALL_BROKERS,
        "setting": each.name,
        "value": each.value,
        "source": each.source,
        "is_default": each.is_default,
        "default": each.default,
        "read_only": each.read_only,
        "sensitive": each.sensitive,
        "type": each.type,
        "documentation": each.documentation,
    }


def _shown(each: Setting) -> str | None:
    return "(hidden)" if each.sensitive else each.value


def _marks(each: Setting) -> str:
    words = ["read-only"] if each.read_only else []
    if not each.is_default and each.default is not None and each.default != each.value:
        words.append(f"else {each.default}")
    return ", ".join(words)
