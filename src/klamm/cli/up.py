"""`klamm up`: run a broker in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.logs import set_up_logging

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092


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
    config: Annotated[
        Path | None, typer.Option(help="Configuration file with Kafka's keys, as properties or TOML.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated."),
    ] = None,
) -> None:
    """Start a broker. Flags override KLAMM_* variables, and these override the configuration file."""
    # Imported here to keep `klamm --help` quick.
    from klamm.cli.run_broker import run_broker
    from klamm.node.broker import CannotStart

    set_up_logging()
    try:
        run_broker(
            host=DEFAULT_HOST if host is None else host,
            port=DEFAULT_PORT if port is None else port,
            is_address_given=host is not None or port is not None,
            data_dir=data_dir,
            config_file=config,
            settings=set_ or [],
        )
    except CannotStart as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None
