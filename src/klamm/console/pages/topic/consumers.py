"""The tab of a topic's consumers: the groups that have committed offsets of it."""

from __future__ import annotations

from nicegui.page_arguments import PageArguments

from klamm.console.addresses import group_url
from klamm.console.pages.groups import pace_cell, state_tag
from klamm.console.shell import cells
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.topics import consumers

TAB = "consumers"

COLUMNS = (
    Column("group", "Group", sort=False),
    Column("state", "State", sort=False),
    Column("members", "Members", right=True, sort=False, hide="phone"),
    Column("lag", "Lag on this topic", right=True, sort=False),
    Column("pace", "", sort=False, hide="phone"),
)


def build(visit: Visit, topic: str, arguments: PageArguments) -> None:
    def load(_: object) -> Listing:
        return Listing(
            [
                Row(
                    row.group,
                    {
                        "group": cells.link(row.group, group_url(row.group)),
                        "state": state_tag(row.state),
                        "members": cells.number(row.members),
                        "lag": cells.number(row.lag),
                        "pace": pace_cell(row.pace),
                    },
                    group_url(row.group),
                )
                for row in consumers(visit.picture, topic)
            ]
        )

    empty = Empty(
        "No group reads this topic",
        "Groups stand here when they have committed an offset:",
        f"klamm topic consume {topic} --group me -b {visit.console.settings.bootstrap}",
    )
    Table(visit, COLUMNS, load, TableSettings(search=False, empty=empty))
