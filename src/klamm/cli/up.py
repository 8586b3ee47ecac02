"""`klamm up`: run a broker, or several as one cluster, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from klamm.cli.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.cli.console_child import ConsoleChild
    from klamm.cli.run_broker import Companion
    from klamm.config.loading import BrokerConfig

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = Path("klamm-data")
MOST_BROKERS = 100
"""Brokers that one machine can be asked for: more is a typing error."""


def up(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=DEFAULT_HOST)] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0 picks a free one.", show_default=str(DEFAULT_PORT)
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory that holds the data.", show_default="./klamm-data")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_BROKERS, help="How many brokers; several listen on ports from --port on."
        ),
    ] = 1,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port for /metrics, /livez and /readyz; several brokers take the ports from it on.",
            show_default="none",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a broker of several again when it dies.")
    ] = True,
    console_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the web console; 0 picks a free one.",
            show_default="8080, or a free one",
        ),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Start no web console.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file with Kafka's keys, as properties or TOML.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated."),
    ] = None,
) -> None:
    """Start a broker, or a cluster of --brokers on this machine, and a web console.

    Flags override KLAMM_* variables, and these override the configuration file.
    """
    # Imported here to keep `klamm --help` quick.
    from klamm.cli.supervisor import CannotRun
    from klamm.node.broker import CannotStart

    try:
        if brokers > 1:
            _run_several(
                brokers,
                DEFAULT_HOST if host is None else host,
                DEFAULT_PORT if port is None else port,
                http_port,
                DEFAULT_DATA_DIR if data_dir is None else data_dir,
                config,
                set_ or [],
                restart,
                _Console(console_port, no_console),
            )
        else:
            _run_one(host, port, http_port, data_dir, config, set_ or [], _Console(console_port, no_console))
    except (CannotStart, CannotRun) as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None


class _Console(NamedTuple):
    """Whether a console is to run beside the brokers, and where. None for the port takes the usual one."""

    port: int | None
    is_unwanted: bool

    def companion(self, config: BrokerConfig) -> Companion | None:
        """What starts the console of brokers with this configuration."""
        if self.is_unwanted:
            return None

        def start(bootstrap: str, say: Callable[[str], None]) -> ConsoleChild | None:
            from klamm.cli.console_child import start_console

            return start_console(bootstrap, config.list_("listeners"), self.port, say)

        return start


def _run_one(
    host: str | None,
    port: int | None,
    http_port: int | None,
    data_dir: Path | None,
    config_file: Path | None,
    settings: list[str],
    console: _Console,
) -> None:
    from klamm.cli.run_broker import load_config, run_broker
    from klamm.cli.supervisor import address, check_holds_one_broker

    set_up_logging()
    flags = list(settings)
    if host is not None or port is not None:
        listener = f"PLAINTEXT://{address(host or DEFAULT_HOST, DEFAULT_PORT if port is None else port)}"
        flags.insert(0, f"listeners={listener}")
    if http_port is not None:
        flags.insert(0, f"klamm.http.listener={address(host or DEFAULT_HOST, http_port)}")
    if data_dir is not None:
        flags.insert(0, f"log.dirs={data_dir}")
    config = load_config(config_file, flags)
    check_holds_one_broker(Path(config.list_("log.dirs")[0]))
    run_broker(config, companion=console.companion(config))


def _run_several(
    count: int,
    host: str,
    port: int,
    http_port: int | None,
    data_dir: Path,
    config_file: Path | None,
    settings: list[str],
    restarts: bool,
    console: _Console,
) -> None:
    """Check what all brokers share before any of them starts, so that there is one complaint and no more."""
    from klamm.cli.run_broker import load_config
    from klamm.cli.supervisor import (
        address,
        check_holds_several_brokers,
        check_ports,
        check_settings,
        plan_brokers,
        supervise,
        this_program,
    )

    config = load_config(config_file, [f"listeners=PLAINTEXT://{address(host, port)}", *settings])
    check_settings(config, settings)
    check_holds_several_brokers(data_dir)
    check_ports(count, host, port)
    if http_port is not None:
        check_ports(count, host, http_port, option="--http-port")
    passed_on = [] if config_file is None else ["--config", str(config_file)]
    for setting in settings:
        passed_on += ["--set", setting]
    plans = plan_brokers(count, host, port, data_dir, passed_on, this_program(), http_port=http_port)
    asyncio.run(supervise(plans, restarts=restarts, companion=console.companion(config)))
