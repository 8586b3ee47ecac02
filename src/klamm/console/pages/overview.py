"""The first page: the health of the cluster in one look, what flows, and who is behind."""

from __future__ import annotations

import time

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.pages.groups import group_cells
from klamm.console.pages.topics import topic_cells
from klamm.console.shell import cells
from klamm.console.shell.chart import RANGES, Chart, Line
from klamm.console.shell.parts import Figure, figures, link, page_head, panel, ranges, sentence, space, tag
from klamm.console.shell.table import Column, Empty, Listing, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.overview import Overview, Tone, overview
from klamm.console.watching import history as series
from klamm.operating.units import count_text, several, size_text

PATH = "/"

BUSIEST = (
    Column("name", "Topic", sort=False),
    Column("spark", "", right=True, sort=False),
    Column("rate", "Records/s", right=True, sort=False),
    Column("size", "Size", right=True, sort=False, hide="phone"),
)
BEHIND = (
    Column("name", "Group", sort=False),
    Column("spark", "", right=True, sort=False),
    Column("lag", "Lag", right=True, sort=False),
    Column("pace", "", sort=False, hide="phone"),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Overview")
    chosen = arguments.query_parameters.get("range", "15m")
    range_ms = RANGES.get(chosen, RANGES["15m"])

    def now() -> Overview:
        history = visit.console.collector.history
        return overview(visit.picture, history, int(time.time() * 1000))

    with page_head("Overview"):
        if visit.picture.cluster_id:
            tag(f"cluster {visit.picture.cluster_id}")
        space()
        ranges(PATH, chosen)
    sentence(visit, lambda: _sentence(now()))
    findings = ui.element("div")

    with figures():
        brokers = Figure("Brokers", "/brokers")
        partitions = Figure("Partitions", "/topics")
        produced = Figure("Written", "/metrics")
        consumed = Figure("Read by groups", "/metrics")
        behind = Figure("Groups behind", "/groups?show=behind")
        size = Figure("On disk", "/brokers")

    shown: list[tuple[str, str]] = []

    def refresh() -> None:
        found = now()
        gone = f"{found.brokers_gone} gone" if found.brokers_gone else ""
        controller = "no controller" if found.controller_id is None else f"controller {found.controller_id}"
        broken = bool(found.brokers_gone) or found.controller_id is None
        brokers.show(count_text(found.brokers), gone or controller, "broken" if broken else "")
        note, tone = f"in {several(found.topics, 'topic')}", ""
        if found.under_replicated:
            note, tone = f"{found.under_replicated:,} under-replicated", "look"
        if found.offline:
            note, tone = f"{found.offline:,} offline", "broken"
        partitions.show(count_text(found.partitions), note, tone)
        produced.show(cells.rate_text(found.in_per_s), "records/s")
        consumed.show(cells.rate_text(found.out_per_s), "records/s")
        total = several(found.groups, "group")
        behind.show(count_text(found.groups_behind), f"of {total}", "look" if found.groups_behind else "")
        size.show(size_text(found.size_bytes), "with all replicas")
        lines = [(one.text, one.tone.value) for one in found.health.findings]
        if lines != shown:
            shown[:] = lines
            findings.clear()
            with findings:
                for one in found.health.findings:
                    with ui.element("div").classes(f"k-notice k-{one.tone}"):
                        ui.label(one.text)
                        space()
                        link("Look", one.url)

    refresh()
    visit.on_picture(refresh)

    note = "written, and read by groups that commit offsets"
    with panel("Records per second", note), ui.element("div").classes("k-panel-body"):
        Chart(visit, lambda: _flow(visit, range_ms), unit="/s", height=220, range_ms=range_ms)
    with ui.element("div").classes("k-columns"):
        with panel("Busiest topics") as row:
            with row:
                space()
                link("All topics", "/topics?sort=-rate", "k-note")
            empty = TableSettings(search=False, empty=Empty("There is no topic yet"))
            Table(visit, BUSIEST, lambda _: Listing([topic_cells(one) for one in now().busiest]), empty)
        with panel("Groups with the largest lag") as row:
            with row:
                space()
                link("All groups", "/groups?sort=-lag", "k-note")
            empty = TableSettings(
                search=False, empty=Empty("Nobody is behind", "All groups have read all records.")
            )
            Table(visit, BEHIND, lambda _: Listing([group_cells(one) for one in now().behind]), empty)


def _flow(visit: Visit, range_ms: int) -> list[Line]:
    history, now_ms = visit.console.collector.history, visit.picture.taken_ms
    return [
        Line("written", history.points(series.ALL_PRODUCED, now_ms, range_ms), "produce"),
        Line("read", history.points(series.ALL_CONSUMED, now_ms, range_ms), "consume"),
    ]


def _sentence(found: Overview) -> tuple[str, str]:
    if found.health.tone is Tone.GOOD:
        line = (
            f"All is well: {several(found.brokers, 'broker')}, every partition has all its replicas in sync."
        )
        if found.groups_behind:
            return f"{line} {several(found.groups_behind, 'group')} falling behind.", ""
        return line, ""
    if found.offline:
        return f"{several(found.offline, 'partition')} can neither be read nor written.", "broken"
    return "The cluster works, and something needs a look.", found.health.tone.value
