"""The tab of a topic's partitions: leaders, replicas, offsets, sizes."""

from __future__ import annotations

from nicegui.page_arguments import PageArguments

from klamm.console.addresses import topic_url
from klamm.console.shell import cells
from klamm.console.shell.table import Column, Filter, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.paging import Query
from klamm.console.views.topics import UNHEALTHY, PartitionRow, partitions

TAB = "partitions"

COLUMNS = (
    Column("partition", "Partition", right=True),
    Column("health", "", sort=False),
    Column("leader", "Leader", right=True),
    Column("replicas", "Replicas", sort=False),
    Column("out", "Not in sync", sort=False, hide="phone"),
    Column("first", "First offset", right=True, hide="narrow"),
    Column("end", "End offset", right=True),
    Column("records", "Records", right=True, hide="phone"),
    Column("size", "Size", right=True, hide="phone"),
)


def build(visit: Visit, topic: str, arguments: PageArguments) -> None:
    def load(query: Query) -> Listing:
        if topic not in visit.picture.descriptions:
            return Listing([])
        found = partitions(visit.picture, topic, query)
        return Listing([_cells(row) for row in found.rows], found.page, found.pages, found.total)

    settings = TableSettings(
        topic_url(topic, TAB),
        "partition",
        search=False,
        filters=(Filter(UNHEALTHY, "unhealthy", "Only partitions that are offline or under-replicated"),),
    )
    Table(visit, COLUMNS, load, settings, arguments.query_parameters)


def _cells(row: PartitionRow) -> Row:
    health = []
    if row.is_offline:
        health.append(("offline", "broken"))
    elif row.is_under_replicated:
        health.append(("under-replicated", "look"))
    moved = "" if row.leader == row.preferred_leader else "look"
    late = [str(one) for one in row.replicas if one not in row.in_sync]
    return Row(
        str(row.partition),
        {
            "partition": {"t": str(row.partition)},
            "health": cells.tags(health),
            "leader": cells.text(
                None if row.leader is None else str(row.leader),
                tone=moved,
                title="not the preferred leader" if moved else "",
            ),
            "replicas": cells.text(", ".join(map(str, row.replicas))),
            "out": cells.text(", ".join(late), tone="look") if late else cells.BLANK,
            "first": cells.offset(row.first_offset),
            "end": cells.offset(row.end_offset),
            "records": cells.number(row.records),
            "size": cells.size(row.size_bytes),
        },
    )
