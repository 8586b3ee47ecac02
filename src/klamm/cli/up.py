"""`klamm up`: run a broker in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = "klamm-data"


def up(
    host: Annotated[
        str | None, typer.Option(help=f"Address to listen on.  [default: {DEFAULT_HOST}]", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help=f"Port; 0 takes a free one.  [default: {DEFAULT_PORT}]", show_default=False
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help=f"Where the logs live.  [default: ./{DEFAULT_DATA_DIR}]", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A properties or TOML file with Kafka's setting names.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be repeated.")
    ] = None,
) -> None:
    """Start a broker. Settings: flags win over KLAMM_* variables, these over the file."""
    from klamm.cli.run_broker import CannotStart, run_broker

    logging.basicConfig(
        level=os.environ.get("KLAMM_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        run_broker(host=host, port=port, data_dir=data_dir, config_file=config, settings=set_ or [])
    except CannotStart as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None
