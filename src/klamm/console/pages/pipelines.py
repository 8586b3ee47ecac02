"""The page of all pipelines: what flows from where to where, and how each pipeline is."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import pipeline_url, topic_url
from klamm.console.shell import cells
from klamm.console.shell.frame import heading
from klamm.console.shell.graph import GraphView
from klamm.console.shell.parts import page_head, panel, sentence, space, tag
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.graph import graph
from klamm.console.views.pipelines import PipelineRow, duration_text, pipeline_rows, summary

PATH = "/pipelines"

COLUMNS = (
    Column("name", "Pipeline", sort=False),
    Column("state", "State", sort=False),
    Column("target", "Writes", sort=False, hide="phone"),
    Column("spark", "", right=True, sort=False, hide="narrow"),
    Column("in", "Records/s", right=True, sort=False, hide="phone"),
    Column("out", "Rows out/s", right=True, sort=False, hide="narrow"),
    Column("batch", "Batch", right=True, sort=False, hide="phone"),
    Column("lag", "Lag", right=True, sort=False),
    Column("refused", "Refused", right=True, sort=False, hide="phone"),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Pipelines")
    watch = visit.console.pipelines
    with page_head("Pipelines"):
        for folder in watch.folders:
            tag(folder.name)
        space()
    if not watch.folders:
        _teach(
            "No project of pipelines",
            "A pipeline takes records from topics into tables with PySpark. Create a project, run it, and "
            "start the console in its folder, or with --project.",
            f"klamm pipeline init shop --bootstrap {visit.console.settings.bootstrap}",
        )
        return
    if not watch.pipelines and not watch.is_known:
        _teach("Looking at the projects", "Their files are being imported. This page goes on by itself.", "")
        visit.on_picture(lambda: visit.show_again() if watch.is_known else None)
        return
    sentence(visit, lambda: summary(watch))
    notices = ui.element("div")
    shown: list[str] = []

    def refresh() -> None:
        problems = [problem for project in watch.projects for problem in project.problems]
        if problems == shown:
            return
        shown[:] = problems
        notices.clear()
        with notices:
            for problem in problems:
                with ui.element("div").classes("k-notice k-look"):
                    ui.label(problem)

    refresh()
    visit.on_picture(refresh)
    if watch.pipelines:
        with panel("Flow", "records per second"):
            GraphView(visit, lambda: graph(watch, visit.picture, visit.console.collector.history))
    settings = TableSettings(
        search=False,
        empty=Empty("The projects have no pipelines", "Add a function with @pipeline to a file of one."),
    )
    Table(visit, COLUMNS, lambda _: Listing([row_cells(row) for row in pipeline_rows(watch)]), settings)


def row_cells(row: PipelineRow) -> Row:
    return Row(
        row.key,
        {
            "name": cells.link(row.name, pipeline_url(row.key), sub=row.project),
            "state": state_cell(row),
            "target": target_cell(row),
            "spark": cells.sparkline(row.recent, "produce"),
            "in": cells.per_second(row.in_per_s),
            "out": cells.per_second(row.out_per_s),
            "batch": None if row.batch_ms is None else cells.text(duration_text(row.batch_ms)),
            "lag": cells.number(row.lag),
            "refused": cells.number(row.dead_letters, tone="broken" if row.refused_per_s else ""),
        },
        pipeline_url(row.key),
    )


def state_cell(row: PipelineRow) -> cells.Cell:
    tone = row.tone if row.tone != "good" or row.state == "running" else ""
    return cells.tags([(row.state, tone)])


def target_cell(row: PipelineRow) -> cells.Cell:
    if row.sink == "topic":
        return cells.link(row.target, topic_url(row.target), sub="topic")
    if row.has_table:
        return cells.link(row.target, pipeline_url(row.key, "rows"), sub="table")
    return cells.text(row.target, sub=row.sink)


def _teach(title: str, text: str, command: str) -> None:
    with ui.element("div").classes("k-empty"):
        heading("h3", title)
        ui.label(text)
        if command:
            heading("code", command).props["data-copy"] = command
