"""`klamm up`: run a broker, or several as one cluster, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.logs import set_up_logging

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
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a broker of several again when it dies.")
    ] = True,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file with Kafka's keys, as properties or TOML.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated."),
    ] = None,
) -> None:
    """Start a broker, or a cluster of --brokers on this machine.

    Flags override KLAMM_* variables, and these override the configuration file.
    """
    # Imported here to keep `klamm --help` quick.
    from klamm.cli.run_broker import run_broker
    from klamm.cli.supervisor import CannotRun, plan_brokers, supervise, this_program
    from klamm.node.broker import CannotStart

    settings = set_ or []
    try:
        if brokers > 1:
            plans = plan_brokers(
                brokers,
                DEFAULT_HOST if host is None else host,
                DEFAULT_PORT if port is None else port,
                DEFAULT_DATA_DIR if data_dir is None else data_dir,
                [*(() if config is None else ("--config", str(config))), *_repeated("--set", settings)],
                this_program(),
            )
            asyncio.run(supervise(plans, restarts=restart))
            return
        set_up_logging()
        flags = list(settings)
        if host is not None or port is not None:
            listener = _listener(host or DEFAULT_HOST, DEFAULT_PORT if port is None else port)
            flags.insert(0, f"listeners={listener}")
        if data_dir is not None:
            flags.insert(0, f"log.dirs={data_dir}")
        run_broker(config_file=config, settings=flags)
    except (CannotStart, CannotRun) as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None


def _listener(host: str, port: int) -> str:
    return f"PLAINTEXT://{f'[{host}]' if ':' in host else host}:{port}"


def _repeated(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
