"""The page of one topic."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import name_of, topic_url
from klamm.console.pages.groups import pace_text
from klamm.console.pages.topic.actions import add_partitions, delete_topic
from klamm.console.pages.topic.tabs import TABS
from klamm.console.shell import cells
from klamm.console.shell.frame import heading
from klamm.console.shell.parts import button, page_head, sentence, space, tabs, tag
from klamm.console.shell.visit import Visit
from klamm.console.views.topics import consumers, topic_row
from klamm.operating.units import count_text, several, size_text


def build(visit: Visit, arguments: PageArguments) -> None:
    topic = name_of(arguments.path_parameters["topic"])
    key = arguments.path_parameters.get("tab", TABS[0].key)
    tab = next((one for one in TABS if one.key == key), None)
    if topic not in visit.picture.topics or tab is None:
        _show_missing(visit, topic)
        return
    visit.begin_page(topic)
    state = visit.picture.topics[topic]
    with page_head(topic, above=("/topics", "Topics")):
        tag(several(state.partitions, "partition"))
        tag(several(state.replicas, "replica"))
        if state.is_internal:
            tag("internal")
        space()
        if not visit.console.changes.is_read_only:
            button("More partitions", lambda: add_partitions(visit, topic))
            button("Delete", lambda: delete_topic(visit, topic), "k-danger")
    sentence(visit, lambda: _sentence(visit, topic))
    addresses = [(one.name, topic_url(topic, one.key)) for one in TABS]
    tabs(addresses, topic_url(topic, key))
    tab.build(visit, topic, arguments)


def _show_missing(visit: Visit, topic: str) -> None:
    visit.begin_page("No such topic")
    with ui.element("div").classes("k-empty"):
        heading("h3", f"There is no topic {topic}")
        ui.label("It may have been deleted, or not be there yet: the console looks again every few seconds.")
        ui.html('<p><a href="/topics" class="k-good-text">All topics</a></p>', sanitize=False)

    def look() -> None:
        if topic in visit.picture.topics:
            visit.show_again()

    visit.on_picture(look)


def _sentence(visit: Visit, topic: str) -> tuple[str, str]:
    state = visit.picture.topics.get(topic)
    if state is None:
        return "This topic is gone: it was deleted while this page was open.", "broken"
    if state.offline:
        text = f"{several(state.offline, 'partition')} of {count_text(state.partitions)} offline: "
        return text + "what is in them can neither be read nor written.", "broken"
    row = topic_row(visit.picture, visit.console.collector.history, state)
    facts = f"{several(row.records or 0, 'record')}, {size_text(row.size_bytes)}"
    if row.in_per_s is not None:
        facts += f", {cells.rate_text(row.in_per_s)} written per second" if row.in_per_s else ", nothing new"
    if state.under_replicated:
        return f"{facts}. {several(state.under_replicated, 'partition')} under-replicated.", "look"
    readers = consumers(visit.picture, topic)
    if readers and readers[0].lag:
        first = readers[0]
        pace = pace_text(first.pace)
        facts += f". {first.group} is {several(first.lag or 0, 'record')} behind" + (
            f", {pace}" if pace else ""
        )
    return f"{facts}.", ""
