"""The page of all groups."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui.page_arguments import PageArguments

from klamm.console.addresses import group_url
from klamm.console.shell import cells
from klamm.console.shell.parts import page_head, sentence, space
from klamm.console.shell.table import Column, Empty, Filter, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.groups import ACTIVE, BEHIND, GroupRow, groups
from klamm.console.views.paging import Query
from klamm.console.watching.pace import Pace, Trend
from klamm.operating.units import count_text, several

PATH = "/groups"

COLUMNS = (
    Column("name", "Group"),
    Column("state", "State"),
    Column("members", "Members", right=True, hide="phone"),
    Column("topics", "Topics", right=True, hide="narrow"),
    Column("rate", "Records/s", right=True, hide="phone"),
    Column("spark", "", right=True, sort=False, hide="phone"),
    Column("lag", "Lag", right=True),
    Column("pace", "", sort=False, hide="phone"),
)
_STATE_TONES = {
    "Stable": "good",
    "PreparingRebalance": "look",
    "CompletingRebalance": "look",
    "Dead": "broken",
}


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Groups")
    with page_head("Groups"):
        space()
    sentence(visit, lambda: _sentence(visit))

    def load(query: Query) -> Listing:
        found = groups(visit.picture, visit.console.collector.history, query)
        return Listing([group_cells(row) for row in found.rows], found.page, found.pages, found.total)

    settings = TableSettings(
        PATH,
        "-lag",
        placeholder="Search groups",
        filters=(
            Filter(ACTIVE, "with members", "Only groups that are not empty"),
            Filter(BEHIND, "falling behind", "Only groups whose lag grows"),
        ),
        empty=Empty(
            "There is no group yet",
            "A group is there as soon as a consumer joins it or commits an offset:",
            f"klamm topic consume TOPIC --group me -b {visit.console.settings.bootstrap}",
        ),
    )
    Table(visit, COLUMNS, load, settings, arguments.query_parameters)


def group_cells(row: GroupRow) -> Row:
    return Row(
        row.name,
        {
            "name": cells.link(row.name, group_url(row.name)),
            "state": state_tag(row.state),
            "members": cells.number(row.members),
            "topics": cells.text(topics_text(row.topics), title=", ".join(row.topics)),
            "rate": cells.per_second(row.out_per_s),
            "spark": cells.sparkline(row.recent_lag, "lag"),
            "lag": cells.number(row.lag),
            "pace": pace_cell(row.pace),
        },
        group_url(row.name),
    )


def topics_text(topics: Sequence[str]) -> str | None:
    return None if not topics else topics[0] if len(topics) == 1 else several(len(topics), "topic")


def state_tag(state: str) -> cells.Cell:
    return cells.tags([(state or "unknown", _STATE_TONES.get(state, ""))])


def pace_cell(pace: Pace) -> cells.Cell:
    tone = {Trend.FALLING_BEHIND: "look", Trend.CATCHING_UP: "good"}.get(pace.trend, "muted")
    text = pace_text(pace)
    return cells.text(text, tone=tone) if text else cells.BLANK


def pace_text(pace: Pace) -> str:
    """How a group gets on: "caught up in about 4 min", "falling behind by 120/s"."""
    if pace.trend is Trend.FALLING_BEHIND:
        return f"falling behind by {cells.rate_text(pace.per_s)}/s"
    if pace.trend is Trend.CATCHING_UP and pace.seconds_left is not None:
        return f"caught up in about {cells.duration_text(pace.seconds_left)}"
    if pace.trend is Trend.CAUGHT_UP:
        return "caught up"
    return "as far behind as before" if pace.trend is Trend.STEADY else ""


def _sentence(visit: Visit) -> tuple[str, str]:
    found = visit.picture.groups
    active = sum(1 for one in found.values() if one.state != "Empty")
    lag = sum(one.lag or 0 for one in found.values())
    line = f"{several(len(found), 'group')}, {count_text(active)} with members."
    return f"{line} Together they are {several(lag, 'record')} behind." if lag else line, ""
