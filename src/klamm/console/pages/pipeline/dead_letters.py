"""The dead-letter records of a pipeline, with the reason beside each, and their redrive."""

from __future__ import annotations

from datetime import UTC, datetime

from nicegui import background_tasks, ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import message_url, pipeline_url, with_query
from klamm.console.pages.pipeline.loading import Later
from klamm.console.shell import cells
from klamm.console.shell.dialog import Command, Dialog, Done
from klamm.console.shell.frame import heading
from klamm.console.shell.parts import button, link, panel, space, tag
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.pipelines import pipeline_row
from klamm.operating.errors import CannotDo
from klamm.operating.pipelines.dead_letters import DeadLetter, DeadLetters
from klamm.operating.units import several

TAB = "dead-letters"
LOOK_S = 1.0

COLUMNS = (
    Column("rule", "Rule", sort=False),
    Column("error", "Reason", sort=False),
    Column("value", "Value", sort=False),
    Column("key", "Key", sort=False, hide="narrow"),
    Column("source", "Original", sort=False, hide="phone"),
    Column("time", "Time (UTC)", sort=False, hide="phone"),
)


def build(visit: Visit, key: str, arguments: PageArguments) -> None:
    console = visit.console
    found = console.pipelines.find(key)
    if found is None:
        return
    topic = pipeline_row(console.pipelines, found).dead_letter_topic
    rule = arguments.query_parameters.get("rule", "")
    output = ui.element("div")
    _follow(visit, key, output)
    Later(
        "the newest dead-letter records",
        lambda: console.pipelines.dead_letters(visit.picture, key, rule),
        lambda letters: _show(visit, key, topic, rule, letters),
    )


def _show(visit: Visit, key: str, topic: str, rule: str, found: DeadLetters) -> None:
    here = pipeline_url(key, TAB)
    with ui.element("div").classes("k-head"):
        for name, count in found.rules.items():
            path = here if name == rule else with_query(here, {"rule": name})
            chip = link(f"{name}  {count:,}", path, "k-chip m-link")
            chip.props["aria-pressed"] = "true" if name == rule else "false"
        if not found.is_whole:
            tag(f"the newest {found.scanned:,} of {several(found.total, 'record')} were looked at")
        space()
        if found.rules and not visit.console.settings.is_read_only:
            button("Redrive …", lambda: _ask(visit, key, rule), "k-primary")
    empty = Empty(
        "Nothing was refused",
        f'Rows that break an expectation with otherwise="dead_letter" go to {topic}, with the reason.',
    )
    listing = Listing([_cells(topic, each) for each in found.records])
    Table(visit, COLUMNS, lambda _: listing, TableSettings(search=False, empty=empty))


def _cells(topic: str, record: DeadLetter) -> Row:
    url = message_url(topic, record.partition, record.offset)
    original: cells.Cell = cells.BLANK
    if record.topic is not None and record.topic_partition is not None and record.topic_offset is not None:
        place = f"{record.topic}-{record.topic_partition} at {record.topic_offset:,}"
        original = cells.link(place, message_url(record.topic, record.topic_partition, record.topic_offset))
    time = "–"
    if 0 <= record.timestamp < 10**14:
        time = f"{datetime.fromtimestamp(record.timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    return Row(
        f"{record.partition}-{record.offset}",
        {
            "rule": cells.tags([(record.rule, "broken")]),
            "error": cells.text(record.error),
            "value": cells.text(record.value, mono=True),
            "key": cells.text(record.key, mono=True),
            "source": original,
            "time": cells.text(time),
        },
        url,
    )


def _ask(visit: Visit, key: str, rule: str) -> None:
    """Ask with what the command itself says that it would do."""
    watch = visit.console.pipelines
    what = f"Redrive the dead-letter records of {key}" + (f" that broke {rule}" if rule else "")
    dialog = Dialog(visit, what, "Do this after their cause was fixed. Each comes into the table once.")
    with dialog:
        told = heading("pre", "Asking what would be redriven …", "k-output")
        Command(watch.wanted_redrive(key, rule).command)

        async def start() -> Done:
            visit.console.changes.check_allowed()
            watch.start_redrive(key, rule)
            return Done(f"The redrive of {key} has begun", path=pipeline_url(key, TAB))

        dialog.actions("Redrive", start, is_ready=False)

    async def fill() -> None:
        try:
            preview = await watch.preview_redrive(key, rule)
        except CannotDo as error:
            dialog.complain(str(error))
            told.set_visibility(False)
            return
        told._text = "\n".join(preview.lines) or "There is nothing to redrive."
        told.update()
        dialog.ready(preview.records > 0)

    background_tasks.create(fill(), name="preview")


def _follow(visit: Visit, key: str, place: ui.element) -> None:
    """Show the output of the pipeline's redrive while there is one, and how it ended."""
    watch = visit.console.pipelines
    shown: list[object] = [None]

    def refresh() -> None:
        now = watch.latest_redrive(key)
        if now is None or now == shown[0]:
            return
        shown[0] = now
        if now.is_running:
            state = "running"
        else:
            state = "done" if now.status == 0 else f"failed, exit status {now.status}"
        place.clear()
        with place, panel("Redrive") as head:
            with head:
                tag(state, "" if now.is_running else "good" if now.status == 0 else "broken")
                space()
            with ui.element("div").classes("k-panel-body"):
                heading("pre", "\n".join(now.lines) or "…", "k-output")

    refresh()
    ui.timer(LOOK_S, refresh)
