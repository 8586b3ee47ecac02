"""The page of one group: how far it is behind, over time and by partition, and its members."""

from __future__ import annotations

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import group_url, name_of, topic_url
from klamm.console.pages.group_actions import copy_group, delete_group, move_offsets
from klamm.console.pages.groups import pace_text, topics_text
from klamm.console.shell import cells
from klamm.console.shell.chart import RANGES, Chart, Line
from klamm.console.shell.frame import heading
from klamm.console.shell.parts import button, page_head, panel, ranges, sentence, space, tag
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.groups import MemberRow, OffsetRow, lag_points, members, offsets
from klamm.console.views.paging import Query
from klamm.console.watching.pace import Trend
from klamm.operating.units import several

OFFSETS = (
    Column("topic", "Topic"),
    Column("partition", "Partition", right=True),
    Column("committed", "Committed", right=True, hide="phone"),
    Column("end", "End", right=True, hide="phone"),
    Column("lag", "Lag", right=True),
    Column("member", "Member", hide="phone"),
    Column("stuck", "", sort=False),
)
MEMBERS = (
    Column("client", "Client", sort=False),
    Column("host", "Host", sort=False, hide="phone"),
    Column("partitions", "Partitions", sort=False),
    Column("lag", "Lag", right=True, sort=False),
    Column("id", "Member id", sort=False, hide="narrow"),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    name = name_of(arguments.path_parameters["group"])
    state = visit.picture.groups.get(name)
    if state is None:
        _show_missing(visit, name)
        return
    visit.begin_page(name)
    chosen = arguments.query_parameters.get("range", "15m")
    range_ms = RANGES.get(chosen, RANGES["15m"])
    with page_head(name, above=("/groups", "Groups")):
        tag(state.state or "unknown", "good" if state.state == "Stable" else "")
        if state.strategy:
            tag(state.strategy)
        tag(f"coordinator {state.coordinator}")
        space()
        if not visit.console.changes.is_read_only:
            button("Move offsets", lambda: move_offsets(visit, name), "k-primary")
            button("Copy", lambda: copy_group(visit, name))
            button("Delete", lambda: delete_group(visit, name), "k-danger")
    sentence(visit, lambda: _sentence(visit, name))

    with panel("Lag") as row:
        with row:
            space()
            ranges(group_url(name), chosen)
        with ui.element("div").classes("k-panel-body"):
            Chart(visit, lambda: _lag(visit, name, range_ms), height=220, range_ms=range_ms)
    with panel("Partitions"):
        settings = TableSettings(
            group_url(name),
            "-lag",
            placeholder="Search topics",
            empty=Empty("No committed offsets", "The group has not committed an offset yet."),
        )
        Table(
            visit, OFFSETS, lambda query: _offsets(visit, name, query), settings, arguments.query_parameters
        )
    with panel("Members"):
        empty = Empty("No members", "Nobody reads with this group now. Its offsets stay.")
        settings = TableSettings(search=False, empty=empty)
        Table(visit, MEMBERS, lambda _: _members(visit, name), settings)


def _lag(visit: Visit, name: str, range_ms: int) -> list[Line]:
    history = visit.console.collector.history
    return [Line("lag", lag_points(visit.picture, history, name, range_ms), "lag", area=True)]


def _offsets(visit: Visit, name: str, query: Query) -> Listing:
    state = visit.picture.groups.get(name)
    if state is None:
        return Listing([])
    found = offsets(visit.picture, state, query)
    return Listing([_offset_cells(row) for row in found.rows], found.page, found.pages, found.total)


def _offset_cells(row: OffsetRow) -> Row:
    return Row(
        f"{row.topic}/{row.partition}",
        {
            "topic": cells.link(row.topic, topic_url(row.topic)),
            "partition": {"t": str(row.partition)},
            "committed": cells.offset(row.committed),
            "end": cells.offset(row.end),
            "lag": cells.number(row.lag),
            "member": cells.text(row.member, title=row.member_id or ""),
            "stuck": cells.tags([("nobody reads it", "look")] if row.is_stuck else []),
        },
    )


def _members(visit: Visit, name: str) -> Listing:
    state = visit.picture.groups.get(name)
    return Listing([_member_cells(row) for row in members(visit.picture, state)] if state else [])


def _member_cells(row: MemberRow) -> Row:
    by_topic: dict[str, list[int]] = {}
    for at in row.partitions:
        by_topic.setdefault(at.topic, []).append(at.partition)
    owned = "; ".join(f"{topic} {', '.join(map(str, numbers))}" for topic, numbers in by_topic.items())
    return Row(
        row.member_id,
        {
            "client": cells.text(row.client_id, sub=row.instance_id or ""),
            "host": cells.text(row.host, mono=True),
            "partitions": cells.text(owned) if owned else cells.text("none", tone="look"),
            "lag": cells.number(row.lag),
            "id": cells.text(row.member_id, mono=True),
        },
    )


def _show_missing(visit: Visit, name: str) -> None:
    visit.begin_page("No such group")
    with ui.element("div").classes("k-empty"):
        heading("h3", f"There is no group {name}")
        ui.label("A group that is empty and has no committed offsets is forgotten by the brokers.")
        ui.html('<p><a href="/groups" class="k-good-text">All groups</a></p>', sanitize=False)

    def look() -> None:
        if name in visit.picture.groups:
            visit.show_again()

    visit.on_picture(look)


def _sentence(visit: Visit, name: str) -> tuple[str, str]:
    state = visit.picture.groups.get(name)
    if state is None:
        return "This group is gone: it was deleted, or forgotten, while this page was open.", "broken"
    reads = topics_text(state.topics)
    text = f"Reads {reads}" if reads else "Has committed nothing"
    if state.members:
        text += f" with {several(len(state.members), 'member')}"
    elif state.members is not None:
        text += ", and nobody is in it now" if reads else ", and nobody is in it"
    if not state.lag:
        return f"{text}. {'It has read all records.' if state.lag == 0 else ''}".strip(), ""
    pace = pace_text(state.pace)
    line = f"{text}. It is {several(state.lag, 'record')} behind" + (f", {pace}" if pace else "") + "."
    return line, "look" if state.pace.trend is Trend.FALLING_BEHIND else ""
