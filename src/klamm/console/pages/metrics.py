"""The page of charts. They share the cursor and the range of time."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.shell.chart import RANGES, Chart, Line
from klamm.console.shell.parts import page_head, panel, ranges, sentence, space
from klamm.console.shell.visit import Visit
from klamm.console.views.metrics import ChartView, Unit, charts

PATH = "/metrics"

UNITS = {Unit.RECORDS: "", Unit.PER_SECOND: "/s", Unit.BYTES: "B", Unit.MILLISECONDS: " ms"}
HUES = {"written": "produce", "read": "consume", "lag": "lag"}
SERIES_HUES = ("one", "two", "three", "four", "five")


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Metrics")
    chosen = arguments.query_parameters.get("range", "15m")
    range_ms = RANGES.get(chosen, RANGES["15m"])
    with page_head("Metrics"):
        space()
        ranges(PATH, chosen)
    sentence(visit, lambda: ("What the console has seen since it was started, six hours at most.", ""))

    def views() -> list[ChartView]:
        return charts(visit.picture, visit.console.collector.history, range_ms)

    with ui.element("div").classes("k-columns"):
        for number, view in enumerate(views()):
            with panel(view.title, view.note), ui.element("div").classes("k-panel-body"):

                def lines(number: int = number) -> list[Line]:
                    view = views()[number]
                    is_area = view.title == "Lag"
                    return [
                        Line(line.name, line.points, HUES.get(line.name, SERIES_HUES[place]), area=is_area)
                        for place, line in enumerate(view.lines)
                    ]

                Chart(visit, lines, unit=UNITS[view.unit], height=180, range_ms=range_ms)
