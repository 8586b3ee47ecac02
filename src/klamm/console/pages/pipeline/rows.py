"""The newest rows of the table that a pipeline writes; each with a link to the record that it is made of."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import message_url, topic_url
from klamm.console.pages.pipeline.loading import Later
from klamm.console.shell import cells
from klamm.console.shell.frame import heading
from klamm.console.shell.parts import space, tag
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.pipelines import pipeline_row
from klamm.operating.pipelines.tables import Rows
from klamm.operating.units import several, size_text

TAB = "rows"


def build(visit: Visit, key: str, arguments: PageArguments) -> None:
    watch = visit.console.pipelines
    found = watch.find(key)
    row = pipeline_row(watch, found) if found is not None else None
    if row is None or not row.has_table:
        _elsewhere(row.sink if row is not None else "", row.target if row is not None else "")
        return
    later = Later("the newest rows", lambda: watch.rows(key), lambda rows: _show(visit, rows))
    shown = [row.batch]

    def refresh() -> None:
        now = watch.find(key)
        batch = now.status.batch if now is not None and now.status is not None else None
        if batch != shown[0]:
            shown[0] = batch
            later.start()

    visit.on_picture(refresh)


def _show(visit: Visit, found: Rows | None) -> None:
    if found is None:
        with ui.element("div").classes("k-empty"):
            heading("h3", "There is no table yet")
            ui.label("The first batch with rows creates it.")
        return
    with ui.element("div").classes("k-head"):
        tag(f"version {found.version:,}")
        tag(several(found.records or 0, "row"))
        tag(several(found.files, "file"))
        tag(size_text(found.size_bytes))
        if found.more_columns:
            tag(f"{several(found.more_columns, 'more column')} not shown", "look")
        space()
    columns = [Column(str(number), name, sort=False) for number, name in enumerate(found.columns)]
    empty = Empty("The table has no rows")
    listing = Listing([_cells(found, number) for number in range(len(found.rows))])
    Table(visit, columns, lambda _: listing, TableSettings(search=False, empty=empty))


def _cells(found: Rows, number: int) -> Row:
    values = dict(zip(found.columns, found.rows[number], strict=True))
    shown = {}
    for place, (name, value) in enumerate(values.items()):
        if name == "_offset" and (url := source_url(values)):
            shown[str(place)] = cells.link(value or "", url)
        elif name == "_topic" and value:
            shown[str(place)] = cells.link(value, topic_url(value))
        else:
            shown[str(place)] = cells.text(value)
    return Row(str(number), shown)


def source_url(values: dict[str, str | None]) -> str:
    """The record that a row is made of; empty if the row does not say."""
    topic, partition, offset = (values.get(name) or "" for name in ("_topic", "_partition", "_offset"))
    if not topic or not partition.isdecimal() or not offset.isdecimal():
        return ""
    return message_url(topic, int(partition), int(offset))


def _elsewhere(sink: str, target: str) -> None:
    with ui.element("div").classes("k-empty"):
        if sink == "topic":
            heading("h3", f"The rows go to the topic {target}")
            heading("a", "Its messages", "k-good-text").props["href"] = topic_url(target, "messages")
            return
        heading("h3", f"The rows go to {sink} {target}".strip())
        ui.label("The console shows rows of Delta tables.")
