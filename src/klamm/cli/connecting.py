"""How commands reach a cluster: by flags, else by environment variables, else by a profile, else localhost.

A command that takes a `Cluster` as its first argument is wrapped by `with_cluster`, which gives the command
the options of a connection and turns the errors of the client into one line and exit status 1.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from klamm.cli.errors import CommandError
from klamm.cli.logs import set_up_logging
from klamm.operating.errors import CannotDo

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin as AsyncAdmin
    from klamm.client.plain.admin import Admin
    from klamm.client.plain.consumer import Consumer
    from klamm.client.plain.producer import Producer

Result = TypeVar("Result")

BOOTSTRAP_VARIABLE = "KLAMM_BOOTSTRAP"
PROFILE_VARIABLE = "KLAMM_PROFILE"
DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_S = 15.0

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells use it: 128 and the number of SIGINT."""

PANEL = "Connection"
"""The part of --help that the options of a connection are in."""

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT",
        help="Any brokers of the cluster, host:port[,host:port].",
        show_default=f"of the profile, else {DEFAULT_BOOTSTRAP}",
        rich_help_panel=PANEL,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar=PROFILE_VARIABLE,
        help="A profile of `klamm profile list`.",
        show_default="the one in use",
        rich_help_panel=PANEL,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="A setting of the client, such as security.protocol=SSL; may be repeated.",
        rich_help_panel=PANEL,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=0.1, help="The most seconds to wait for an answer.", rich_help_panel=PANEL),
]


@dataclass(frozen=True)
class Cluster:
    """The cluster that a command talks to."""

    bootstrap: str
    config: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = DEFAULT_TIMEOUT_S

    def run(self, do: Callable[[AsyncAdmin], Awaitable[Result]]) -> Result:
        """What `do` returns, which gets an asyncio admin: for the functions of `operating/`."""
        import asyncio

        async def with_admin() -> Result:
            async with self.async_admin() as admin:
                return await do(admin)

        return asyncio.run(with_admin())

    def at(self, bootstrap: str, timeout_s: float) -> Cluster:
        """The cluster as it is reached by another address, with another time limit."""
        return replace(self, bootstrap=bootstrap, timeout_s=timeout_s)

    def async_admin(self) -> AsyncAdmin:
        from klamm.client.admin.admin import Admin

        return Admin(self.bootstrap, config=self._config())

    def admin(self) -> Admin:
        from klamm.client.plain.admin import Admin

        return Admin(self.bootstrap, config=self._config())

    def producer(self, **options: Any) -> Producer:
        from klamm.client.plain.producer import Producer

        return Producer(self.bootstrap, config=self._config(), **options)

    def consumer(self, **options: Any) -> Consumer:
        from klamm.client.plain.consumer import Consumer

        return Consumer(self.bootstrap, config=self._config(), **options)

    def _config(self) -> dict[str, str]:
        return {"default.api.timeout.ms": str(int(self.timeout_s * 1000)), **self.config}


def cluster_of(
    bootstrap: str | None, profile: str | None, settings: list[str] | None, timeout_s: float
) -> Cluster:
    """The cluster that flags and environment name; the profile fills what they leave open."""
    from klamm.cli.profiles import Profiles

    chosen = Profiles.read().chosen(profile)
    config = dict(chosen.settings)
    config.update(pairs(settings, "-X"))
    return Cluster(bootstrap or chosen.bootstrap or DEFAULT_BOOTSTRAP, config, timeout_s)


def with_cluster(command: Callable[..., Any]) -> Callable[..., None]:
    """Give a command, whose first parameter is a `Cluster`, the options of a connection instead."""

    def run(
        *arguments: Any,
        bootstrap: str | None,
        profile: str | None,
        settings: list[str] | None,
        timeout: float,
        **options: Any,
    ) -> None:
        with complaints():
            command(cluster_of(bootstrap, profile, settings, timeout), *arguments, **options)

    update_wrapper(run, command)
    hints = get_type_hints(command, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        each.replace(annotation=hints[each.name], kind=keyword)
        for each in list(inspect.signature(command).parameters.values())[1:]
    ]
    added = [
        inspect.Parameter("bootstrap", keyword, default=None, annotation=BootstrapOption),
        inspect.Parameter("profile", keyword, default=None, annotation=ProfileOption),
        inspect.Parameter("settings", keyword, default=None, annotation=SettingsOption),
        inspect.Parameter("timeout", keyword, default=DEFAULT_TIMEOUT_S, annotation=TimeoutOption),
    ]
    del run.__wrapped__  # type: ignore[attr-defined]  # typer would look at the parameters of the command itself
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return run


@contextmanager
def complaints() -> Iterator[None]:
    """Turn errors into one line on stderr and an exit status."""
    set_up_logging()
    from klamm.client.errors import ClientError

    try:
        yield
        sys.stdout.flush()
    except (ClientError, CannotDo) as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read the output has enough, as `head` does. Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE texts as a dictionary."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} {text} is not valid: expected KEY=VALUE")
        found[name.strip()] = value.strip()
    return found
