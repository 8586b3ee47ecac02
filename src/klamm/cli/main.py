"""The command `klamm`, put together from one file per noun."""

from __future__ import annotations

import typer

from klamm.cli import cluster, ingest, pipeline, table
from klamm.cli.broker import broker
from klamm.cli.up import up

app = typer.Typer(
    name="klamm",
    help="Klamm: an event-streaming platform that speaks Kafka's wire protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Klamm: an event-streaming platform that speaks Kafka's wire protocol."""


app.command()(up)
app.command()(broker)
app.add_typer(cluster.app, name="cluster")
app.add_typer(ingest.app, name="ingest")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(table.app, name="table")


def main() -> None:
    app()
