"""`klamm profile …`: names for clusters, with their addresses and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from klamm.cli.asking import YesOption, confirmed
from klamm.cli.connecting import complaints, pairs
from klamm.cli.output import Output, OutputOption

SECRET_WORDS = ("password", "secret", "token", "jaas")
"""Settings with one of these words in their name are not shown."""

app = typer.Typer(
    help="Profiles: names for clusters, with addresses and settings.",
    no_args_is_help=True,
    add_completion=False,
)

NameArgument = Annotated[str, typer.Argument(help="The name of the profile.")]
SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings in Kafka's names.")
]


@app.callback()
def root() -> None:
    """Profiles: names for clusters, with addresses and settings."""


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """Show all profiles. The one in use is marked."""
    with complaints():
        from klamm.cli.profiles import Profiles
        from klamm.cli.showing import write_rows, write_values

        found = Profiles.read()
        if output is Output.TABLE:
            rows = [
                ("*" if name == found.current else "", name, each.bootstrap, _as_text(each.settings))
                for name, each in found.profiles.items()
            ]
            write_rows(("", "profile", "bootstrap", "settings"), rows, output)
            return
        write_values([_value(found, name) for name in found.profiles], output)


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="The name of the profile.", show_default="the one in use")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one profile. Secrets are hidden."""
    with complaints():
        from klamm.cli.errors import CommandError
        from klamm.cli.profiles import Profiles
        from klamm.cli.showing import write_json, write_rows, write_values

        found = Profiles.read()
        wanted = name or found.current
        if not wanted:
            raise CommandError("no profile is in use", advice="Choose one: klamm profile use NAME")
        profile = found.named(wanted)
        if output is Output.TABLE:
            rows = [("bootstrap", profile.bootstrap), *_shown(profile.settings).items()]
            write_rows(("setting", "value"), rows, output)
        elif output is Output.JSON:
            write_json(_value(found, wanted))
        else:
            write_values([_value(found, wanted)], output)


@app.command()
def create(
    name: NameArgument,
    settings: SettingsArgument = None,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Any brokers of the cluster.")
    ] = "",
    use: Annotated[bool, typer.Option("--use/--no-use", help="Use the profile from now on.")] = True,
) -> None:
    """Create a profile, and use it."""
    with complaints():
        from klamm.cli.errors import CommandError
        from klamm.cli.profiles import Profile, Profiles

        found = Profiles.read()
        if name in found.profiles:
            raise CommandError(
                f"there is a profile {name} already", advice=f"Change it: klamm profile set {name} KEY=VALUE"
            )
        if not bootstrap:
            raise CommandError(
                "a profile needs the addresses of brokers", advice="Give --bootstrap HOST:PORT"
            )
        found.with_profile(name, Profile(bootstrap, pairs(settings, "setting")), is_current=use).write()
        typer.echo(f"klamm: profile {name} is in {found.path}", err=True)


@app.command()
def use(name: NameArgument) -> None:
    """Use a profile from now on: for all commands without --profile and --bootstrap."""
    with complaints():
        from klamm.cli.profiles import Profiles

        found = Profiles.read()
        found.with_profile(name, found.named(name), is_current=True).write()


@app.command("set")
def set_(name: NameArgument, settings: SettingsArgument = None) -> None:
    """Change settings of a profile; `bootstrap` is one of them."""
    with complaints():
        from klamm.cli.profiles import Profiles

        found = Profiles.read()
        profile, given = found.named(name), pairs(settings, "setting")
        bootstrap = given.pop("bootstrap", profile.bootstrap)
        changed = replace(profile, bootstrap=bootstrap, settings={**profile.settings, **given})
        found.with_profile(name, changed, is_current=False).write()


@app.command()
def unset(
    name: NameArgument, keys: Annotated[list[str], typer.Argument(help="The settings to remove.")]
) -> None:
    """Remove settings from a profile."""
    with complaints():
        from klamm.cli.errors import CommandError
        from klamm.cli.profiles import Profiles

        found = Profiles.read()
        profile = found.named(name)
        if unknown := [key for key in keys if key not in profile.settings]:
            raise CommandError(f"profile {name} does not set {', '.join(unknown)}")
        left = {key: value for key, value in profile.settings.items() if key not in keys}
        found.with_profile(name, replace(profile, settings=left), is_current=False).write()


@app.command()
def delete(name: NameArgument, yes: YesOption = False) -> None:
    """Delete a profile."""
    with complaints():
        from klamm.cli.profiles import Profiles

        left = Profiles.read().without(name)
        if confirmed(yes, f"Delete profile {name}?"):
            left.write()


def _value(found: object, name: str) -> dict[str, object]:
    from klamm.cli.profiles import Profiles

    assert isinstance(found, Profiles)
    profile = found.profiles[name]
    return {
        "profile": name,
        "in_use": name == found.current,
        "bootstrap": profile.bootstrap,
        "settings": _shown(profile.settings),
    }


def _shown(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: _hidden(key, value) for key, value in settings.items()}


def _hidden(key: str, value: str) -> str:
    is_secret = any(word in key.lower() for word in SECRET_WORDS) and not value.startswith("${")
    return "(hidden)" if is_secret else value


def _as_text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in _shown(settings).items())
