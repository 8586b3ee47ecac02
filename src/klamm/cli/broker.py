"""`klamm broker`: run one broker of a cluster in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.logs import set_up_logging


def broker(
    id_: Annotated[int, typer.Option("--id", min=0, help="The id of this broker, unique in its cluster.")],
    coordination: Annotated[
        str,
        typer.Option(
            help="The store that the brokers of the cluster share: zookeeper://host:port,host:port/path, or "
            "sqlite://FILE for brokers of one machine."
        ),
    ],
    listeners: Annotated[
        str | None,
        typer.Option(
            help="Addresses to listen on, NAME://host:port[,…].", show_default="PLAINTEXT://127.0.0.1:9092"
        ),
    ] = None,
    advertised_listeners: Annotated[
        str | None,
        typer.Option(help="Addresses that clients and brokers connect to.", show_default="the listeners"),
    ] = None,
    http_listener: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for /metrics, /livez and /readyz.", show_default="none"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory that holds the data.", show_default="./klamm-data")
    ] = None,
    rack: Annotated[
        str | None, typer.Option(help="Where this broker stands; replicas are spread over racks.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file with Kafka's keys, as properties or TOML.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated."),
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when the standard input ends.")
    ] = False,
) -> None:
    """Start one broker of a cluster. Flags override KLAMM_* variables and the configuration file."""
    # Imported here to keep `klamm --help` quick.
    from klamm.cli.run_broker import load_config, run_broker
    from klamm.node.broker import CannotStart

    given = {
        "node.id": str(id_),
        "klamm.coordination.url": coordination,
        "listeners": listeners,
        "advertised.listeners": advertised_listeners,
        "klamm.http.listener": http_listener,
        "log.dirs": None if data_dir is None else str(data_dir),
        "broker.rack": rack,
    }
    flags = [f"{key}={value}" for key, value in given.items() if value is not None]
    set_up_logging(broker_id=id_)
    try:
        run_broker(load_config(config, [*flags, *(set_ or [])]), stops_with_stdin=stop_with_stdin)
    except CannotStart as error:
        typer.echo(f"klamm: {error}", err=True)
        raise typer.Exit(1) from None
