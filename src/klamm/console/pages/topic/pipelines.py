"""The tab of the pipelines that read or write a topic."""

from __future__ import annotations

from nicegui.page_arguments import PageArguments

from klamm.console.addresses import pipeline_url
from klamm.console.pages.pipelines import state_cell, target_cell
from klamm.console.shell import cells
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.pipelines import pipelines_of_topic

TAB = "pipelines"

COLUMNS = (
    Column("name", "Pipeline", sort=False),
    Column("does", "What it does", sort=False),
    Column("state", "State", sort=False),
    Column("target", "Writes", sort=False, hide="phone"),
    Column("in", "Records/s", right=True, sort=False, hide="phone"),
    Column("lag", "Lag", right=True, sort=False),
)


def build(visit: Visit, topic: str, arguments: PageArguments) -> None:
    watch = visit.console.pipelines

    def load(_: object) -> Listing:
        return Listing(
            [
                Row(
                    f"{row.key} {does}",
                    {
                        "name": cells.link(row.name, pipeline_url(row.key), sub=row.project),
                        "does": cells.text(does),
                        "state": state_cell(row),
                        "target": target_cell(row),
                        "in": cells.per_second(row.in_per_s),
                        "lag": cells.number(row.lag),
                    },
                    pipeline_url(row.key),
                )
                for row, does in pipelines_of_topic(watch, topic)
            ]
        )

    empty = Empty(
        "No pipeline reads or writes this topic",
        "Those of the projects that the console was started with stand here:"
        if watch.folders
        else "The console was started without a project of pipelines. Create one:",
        "klamm pipeline graph"
        if watch.folders
        else f"klamm pipeline init shop --bootstrap {visit.console.settings.bootstrap}",
    )
    Table(visit, COLUMNS, load, TableSettings(search=False, empty=empty))
