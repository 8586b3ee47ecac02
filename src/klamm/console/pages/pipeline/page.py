"""The page of one pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import name_of, pipeline_url, topic_url
from klamm.console.pages.pipeline import dead_letters, history, overview, rows
from klamm.console.shell.frame import heading
from klamm.console.shell.parts import link, page_head, sentence, space, tabs, tag
from klamm.console.shell.visit import Visit
from klamm.console.views.pipelines import pipeline_row
from klamm.console.views.pipelines import sentence as sentence_of


@dataclass(frozen=True)
class Tab:
    """A tab: the last segment of its address, its name, what builds it, and whether only tables have it."""

    key: str
    name: str
    build: Callable[[Visit, str, PageArguments], None]
    of_tables: bool = False


TABS = (
    Tab(overview.TAB, "Overview", overview.build),
    Tab(rows.TAB, "Rows", rows.build),
    Tab(dead_letters.TAB, "Dead letters", dead_letters.build),
    Tab(history.TAB, "History", history.build, of_tables=True),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    watch = visit.console.pipelines
    name = name_of(arguments.path_parameters["pipeline"])
    found = watch.find(name)
    chosen = arguments.path_parameters.get("tab", TABS[0].key)
    tab = next((one for one in TABS if one.key == chosen), None)
    if found is None or tab is None:
        _show_missing(visit, name)
        return
    key, row = found.key, pipeline_row(watch, found)
    visit.begin_page(found.name)
    with page_head(found.name, above=("/pipelines", "Pipelines")):
        state = tag(row.state, row.tone)
        tag(row.project)
        for topic in row.reads_topics:
            link(f"reads {topic}", topic_url(topic), "k-tag")
        for table in row.reads_tables:
            tag(f"reads table {table}")
        if row.sink == "topic":
            link(f"writes {row.target}", topic_url(row.target), "k-tag")
        elif row.target:
            tag(f"writes {row.sink} {row.target}")
        if row.trigger:
            tag(f"every {row.trigger}")
        space()

    def refresh() -> None:
        now = watch.find(key)
        if now is not None and state._text != now.state:
            state._text = now.state
            state.classes(replace=f"k-tag k-{pipeline_row(watch, now).tone}")
            state.update()

    visit.on_picture(refresh)

    def line() -> tuple[str, str]:
        now = watch.find(key)
        if now is None:
            return "This pipeline is gone: its project does not have it any more.", "broken"
        tone = pipeline_row(watch, now).tone
        return sentence_of(now), tone if tone in ("look", "broken") else ""

    sentence(visit, line)
    shown = [one for one in TABS if row.has_table or not one.of_tables]
    entries = [(one.name, pipeline_url(key, "" if one is TABS[0] else one.key)) for one in shown]
    tabs(entries, pipeline_url(key, "" if tab is TABS[0] else tab.key))
    tab.build(visit, key, arguments)


def _show_missing(visit: Visit, name: str) -> None:
    visit.begin_page("No such pipeline")
    watch = visit.console.pipelines
    with ui.element("div").classes("k-empty"):
        heading("h3", f"There is no pipeline {name}")
        ui.label("The console shows those of the projects that it was started with.")
        heading("a", "All pipelines", "k-good-text").props["href"] = "/pipelines"

    def look() -> None:
        if watch.find(name) is not None:
            visit.show_again()

    visit.on_picture(look)
