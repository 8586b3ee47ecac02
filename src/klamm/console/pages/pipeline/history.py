"""The versions of the table that a pipeline writes: what each commit did, and how many rows it wrote."""

from __future__ import annotations

from datetime import UTC, datetime

from nicegui.page_arguments import PageArguments

from klamm.console.pages.pipeline.loading import Later
from klamm.console.shell import cells
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.operating.pipelines.tables import Version

TAB = "history"

COLUMNS = (
    Column("version", "Version", right=True, sort=False),
    Column("time", "Time (UTC)", sort=False),
    Column("what", "What", sort=False),
    Column("rows", "Rows", right=True, sort=False),
    Column("pipeline", "Pipeline", sort=False, hide="phone"),
)


def build(visit: Visit, key: str, arguments: PageArguments) -> None:
    watch = visit.console.pipelines

    def show(found: list[Version]) -> None:
        empty = Empty("There is no table yet", "The first batch with rows creates it.")
        listing = Listing([_cells(each) for each in found])
        Table(visit, COLUMNS, lambda _: listing, TableSettings(search=False, empty=empty))

    Later("the versions of its table", lambda: watch.versions(key), show)


def _cells(version: Version) -> Row:
    time = datetime.fromtimestamp(version.time_ms / 1000, UTC)
    return Row(
        str(version.version),
        {
            "version": cells.offset(version.version),
            "time": cells.text(f"{time:%Y-%m-%d %H:%M:%S}"),
            "what": cells.text(version.what),
            "rows": cells.number(version.rows),
            "pipeline": cells.text(version.pipeline) if version.pipeline else cells.BLANK,
        },
    )
