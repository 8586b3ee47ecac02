"""The page of all topics."""

from __future__ import annotations

from nicegui.page_arguments import PageArguments

from klamm.console.addresses import topic_url
from klamm.console.pages.topic.actions import create_topic
from klamm.console.shell import cells
from klamm.console.shell.parts import button, page_head, sentence, space
from klamm.console.shell.table import Column, Empty, Filter, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.paging import Query
from klamm.console.views.topics import INTERNAL, UNHEALTHY, TopicRow, topics
from klamm.operating.units import several

PATH = "/topics"

COLUMNS = (
    Column("name", "Topic"),
    Column("health", "", sort=False),
    Column("partitions", "Partitions", right=True, hide="phone"),
    Column("replicas", "Replicas", right=True, hide="narrow"),
    Column("spark", "", right=True, sort=False, hide="phone"),
    Column("rate", "Records/s", right=True),
    Column("records", "Records", right=True, hide="phone"),
    Column("size", "Size", right=True),
    Column("groups", "Groups", right=True, hide="narrow"),
    Column("lag", "Lag", right=True, hide="phone"),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Topics")
    with page_head("Topics"):
        space()
        if not visit.console.changes.is_read_only:
            button("Create topic", lambda: create_topic(visit), "k-primary")
    if "create" in arguments.query_parameters and not visit.console.changes.is_read_only:
        create_topic(visit)
    sentence(visit, lambda: _sentence(visit))

    def load(query: Query) -> Listing:
        found = topics(visit.picture, visit.console.collector.history, query)
        return Listing([topic_cells(row) for row in found.rows], found.page, found.pages, found.total)

    settings = TableSettings(
        PATH,
        "name",
        placeholder="Search topics",
        filters=(
            Filter(INTERNAL, "internal", "Topics of the brokers themselves, too"),
            Filter(
                UNHEALTHY, "unhealthy", "Only topics with partitions that are offline or under-replicated"
            ),
        ),
        empty=Empty(
            "There is no topic yet",
            "Create one here, or by the command line:",
            f"klamm topic create orders -b {visit.console.settings.bootstrap}",
        ),
    )
    Table(visit, COLUMNS, load, settings, arguments.query_parameters)


def topic_cells(row: TopicRow) -> Row:
    return Row(
        row.name,
        {
            "name": cells.link(row.name, topic_url(row.name), sub="internal" if row.is_internal else ""),
            "health": health_tags(row.offline, row.under_replicated),
            "partitions": cells.number(row.partitions),
            "replicas": cells.number(row.replicas),
            "spark": cells.sparkline(row.recent, "produce"),
            "rate": cells.per_second(row.in_per_s),
            "records": cells.number(row.records),
            "size": cells.size(row.size_bytes),
            "groups": cells.number(row.groups),
            "lag": cells.number(row.lag),
        },
        topic_url(row.name),
    )


def health_tags(offline: int, under_replicated: int) -> cells.Cell:
    found = []
    if offline:
        found.append((f"{offline} offline", "broken"))
    if under_replicated:
        found.append((f"{under_replicated} under-replicated", "look"))
    return cells.tags(found)


def _sentence(visit: Visit) -> tuple[str, str]:
    shown = [one for one in visit.picture.topics.values() if not one.is_internal]
    partitions = sum(one.partitions for one in shown)
    line = f"{several(len(shown), 'topic')} with {several(partitions, 'partition')}."
    if offline := sum(1 for one in visit.picture.topics.values() if one.offline):
        return f"{line} {several(offline, 'topic')} cannot be read whole: partitions are offline.", "broken"
    if under := sum(1 for one in visit.picture.topics.values() if one.under_replicated):
        return f"{line} Replicas of {several(under, 'topic')} are behind.", "look"
    return line, ""
