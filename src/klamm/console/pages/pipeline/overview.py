"""The first tab of a pipeline: rates, lag and batch time over time, and what it expects of rows."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import group_url, pipeline_url
from klamm.console.shell import cells
from klamm.console.shell.chart import RANGES, Chart, Line
from klamm.console.shell.parts import Figure, figures, link, panel, ranges, space
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.pipelines import PipelineRow, duration_text, pipeline_row
from klamm.console.watching.pipelines import BATCH, IN, LAG, OUT, REFUSED, series
from klamm.operating.units import count_text

TAB = "overview"

RULES = (
    Column("name", "Rule", sort=False),
    Column("condition", "Condition", sort=False, hide="phone"),
    Column("otherwise", "Otherwise", sort=False),
    Column("broken", "Rows", right=True, sort=False),
)


def build(visit: Visit, key: str, arguments: PageArguments) -> None:
    watch = visit.console.pipelines
    chosen = arguments.query_parameters.get("range", "15m")
    range_ms = RANGES.get(chosen, RANGES["15m"])

    def row() -> PipelineRow | None:
        found = watch.find(key)
        return pipeline_row(watch, found) if found is not None else None

    def lines(*wanted: tuple[str, str, str, bool]) -> list[Line]:
        now_ms = visit.picture.taken_ms
        return [
            Line(name, watch.history.points(series(kind, key), now_ms, range_ms), hue, area)
            for kind, name, hue, area in wanted
        ]

    with figures():
        read = Figure("Records in")
        written = Figure("Rows out")
        behind = Figure("Lag")
        batch = Figure("Last batch")
        refused = Figure("Refused rows", pipeline_url(key, "dead-letters"))

    def refresh() -> None:
        now = row()
        if now is None:
            return
        read.show(f"{cells.rate_text(now.in_per_s)}/s", f"{now.rows_in:,} in this run")
        written.show(f"{cells.rate_text(now.out_per_s)}/s", f"{now.rows_out:,} in this run")
        behind.show(count_text(now.lag), "records", "look" if now.lag and now.tone == "broken" else "")
        took = "–" if now.batch_ms is None else duration_text(now.batch_ms)
        batch.show(took, "" if now.batch is None else f"batch {now.batch:,}")
        refused.show(count_text(now.dead_letters), "in this run", "broken" if now.refused_per_s else "")

    refresh()
    visit.on_picture(refresh)
    with panel("Rows per second") as head:
        with head:
            space()
            ranges(pipeline_url(key), chosen)
        with ui.element("div").classes("k-panel-body"):
            flow = (
                (IN, "in", "produce", False),
                (OUT, "out", "consume", False),
                (REFUSED, "refused", "broken", False),
            )
            Chart(visit, lambda: lines(*flow), unit="/s", range_ms=range_ms)
    with ui.element("div").classes("k-columns"):
        with panel("Lag") as head:
            with head:
                space()
                found = watch.find(key)
                if found is not None and found.group in visit.picture.groups:
                    link("Its group", group_url(found.group), "k-note")
            with ui.element("div").classes("k-panel-body"):
                Chart(visit, lambda: lines((LAG, "lag", "lag", True)), height=160, range_ms=range_ms)
        with panel("Batch time"), ui.element("div").classes("k-panel-body"):
            wanted = (BATCH, "batch", "consume", False)
            Chart(visit, lambda: lines(wanted), unit=" ms", height=160, range_ms=range_ms)
    with panel("Rules", "what is expected of rows, and how many broke it in this run"):
        empty = TableSettings(search=False, empty=Empty("No rules", "Add @expect to a function."))
        Table(visit, RULES, lambda _: _rules(row()), empty)


def _rules(row: PipelineRow | None) -> Listing:
    return Listing(
        [
            Row(
                rule.name,
                {
                    "name": cells.text(rule.name),
                    "condition": cells.text(rule.condition, mono=True) if rule.condition else cells.BLANK,
                    "otherwise": cells.text(rule.otherwise.replace("_", " ") or "–"),
                    "broken": cells.number(rule.broken, tone="look"),
                },
            )
            for rule in (row.rules if row is not None else ())
        ]
    )
