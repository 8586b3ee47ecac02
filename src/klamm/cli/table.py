"""`klamm table …`: the history of a pipeline's table, what changed, and going back. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.asking import YesOption, confirmed
from klamm.cli.output import Output, OutputOption
from klamm.cli.pipeline import ProjectOption, complaints

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.pipelines.tables.table import Table

MOST_ROWS = 20
"""How many rows of a difference are shown on a terminal."""

app = typer.Typer(
    help="Tables that pipelines write: history, differences, going back.",
    no_args_is_help=True,
    add_completion=False,
)

NameArgument = Annotated[str, typer.Argument(help="A table: its name in the project, a path, or a URI.")]


@app.command()
def history(
    name: NameArgument,
    last: Annotated[int, typer.Option(help="So many versions, the newest first.")] = 20,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the versions of a table: batches, replays, merged files."""
    with complaints():
        from klamm.cli.showing import write_rows
        from klamm.pipelines.tables.versions import history as versions

        rows = [
            (each.version, each.time.isoformat(timespec="seconds"), each.what, each.pipeline, each.rows)
            for each in versions(_table(project, name), last)
        ]
        write_rows(("version", "time", "what", "pipeline", "rows"), rows, output)


@app.command()
def diff(
    name: NameArgument,
    old: Annotated[
        str, typer.Option("--from", help="A version or a time; -1 is the one before the newest.")
    ] = "-1",
    new: Annotated[
        str | None, typer.Option("--to", help="A version or a time.", show_default="newest")
    ] = None,
    project: ProjectOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the rows that only one of two versions has. The exit status is 1 if there are any."""
    with complaints():
        from klamm.cli.showing import write_json, write_rows
        from klamm.pipelines.tables import versions

        table = _table(project, name)
        first = versions.resolve_version(table, old)
        second = versions.resolve_version(table, new)
        found = versions.diff(table, first, second)
        if output is Output.TABLE:
            typer.echo(
                f"version {first} to {second}: {found.added.num_rows:,} rows added, {found.gone.num_rows:,} "
                "gone",
                err=True,
            )
            for mark, rows in (("+", found.added), ("-", found.gone)):
                if rows.num_rows:
                    shown = [(mark, *row.values()) for row in rows.slice(0, MOST_ROWS).to_pylist()]
                    write_rows(("", *rows.column_names), shown, output)
        else:
            write_json({"added": found.added.to_pylist(), "gone": found.gone.to_pylist()})
        if found.added.num_rows or found.gone.num_rows:
            raise typer.Exit(1)


@app.command()
def restore(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="A version or a time; -1 is the one before the newest.")],
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Make the rows of an earlier version the table's rows again, in one commit. Pipelines go on reading
    where they are: use `klamm pipeline replay` to have records read again."""
    with complaints():
        from klamm.pipelines.tables import versions

        table = _table(project, name)
        wanted = versions.resolve_version(table, version)
        typer.echo(f"{table.location} gets the rows of version {wanted}", err=True)
        if undone := versions.written_since(table, wanted):
            typer.echo(
                f"undone: {', '.join(undone)}. Records that only these have read are in no row until you "
                "replay them",
                err=True,
            )
        if confirmed(yes, "Restore it?"):
            versions.restore(table, wanted)


def _table(folder: Path | None, name: str) -> Table:
    from klamm.cli.pipelines.finding import load_project
    from klamm.pipelines.locations import local_path, table_location
    from klamm.pipelines.tables.table import Table

    path = local_path(name)
    if folder is None and path is not None and (path / "_delta_log").is_dir():
        return Table(str(path))  # a table by its path needs no project
    project = load_project(folder)
    return Table(table_location(project.tables, name), project.storage)
