"""The page of the brokers, with their disks."""

from __future__ import annotations

import time

from nicegui import ui
from nicegui.page_arguments import PageArguments

from klamm.console.shell import cells
from klamm.console.shell.parts import page_head, panel, sentence, space
from klamm.console.shell.table import Column, Empty, Listing, Row, Table, TableSettings
from klamm.console.shell.visit import Visit
from klamm.console.views.brokers import BrokerRow, DirectoryRow, brokers
from klamm.operating.units import several, size_text

PATH = "/brokers"

BROKERS = (
    Column("id", "Broker", sort=False),
    Column("address", "Address", sort=False),
    Column("state", "", sort=False),
    Column("rack", "Rack", sort=False, hide="narrow"),
    Column("leaders", "Leads", right=True, sort=False),
    Column("replicas", "Replicas", right=True, sort=False, hide="phone"),
    Column("size", "On disk", right=True, sort=False),
    Column("free", "Disk used", sort=False, hide="phone"),
)
DIRECTORIES = (
    Column("broker", "Broker", sort=False),
    Column("path", "Log directory", sort=False),
    Column("state", "", sort=False),
    Column("replicas", "Replicas", right=True, sort=False, hide="phone"),
    Column("size", "On disk", right=True, sort=False),
    Column("used", "Disk used", sort=False, hide="phone"),
)


def build(visit: Visit, arguments: PageArguments) -> None:
    visit.begin_page("Brokers")
    with page_head("Brokers"):
        space()
    sentence(visit, lambda: _sentence(_rows(visit)))
    table = TableSettings(search=False, empty=Empty("No broker is known"))
    Table(visit, BROKERS, lambda _: Listing([_cells(row) for row in _rows(visit)]), table)
    with panel("Disks"), ui.element("div"):
        empty = Empty("No log directory is known", "The brokers have not told what is on their disks yet.")
        settings = TableSettings(search=False, empty=empty)
        Table(visit, DIRECTORIES, lambda _: Listing(_directories(_rows(visit))), settings)


def _rows(visit: Visit) -> list[BrokerRow]:
    return brokers(visit.picture, int(time.time() * 1000))


def _cells(row: BrokerRow) -> Row:
    return Row(
        str(row.id),
        {
            "id": {"t": str(row.id)},
            "address": cells.text(row.address or None, mono=True),
            "state": cells.tags(_state(row)),
            "rack": cells.text(row.rack),
            "leaders": cells.number(row.leaders),
            "replicas": cells.number(row.replicas),
            "size": cells.size(row.size_bytes),
            "free": _disk(row.total_bytes, row.usable_bytes),
        },
    )


def _state(row: BrokerRow) -> list[tuple[str, str]]:
    found = [("controller", "good")] if row.is_controller else []
    if row.is_gone:
        ago = f" for {cells.duration_text(row.silent_s)}" if row.silent_s is not None else ""
        found.append((f"not in the cluster{ago}", "broken"))
    elif row.silent_s is not None:
        found.append((f"has not answered for {cells.duration_text(row.silent_s)}", "look"))
    return found


def _directories(rows: list[BrokerRow]) -> list[Row]:
    return [_directory(row, one) for row in rows for one in row.directories or ()]


def _directory(broker: BrokerRow, row: DirectoryRow) -> Row:
    state = [("cannot be used", "broken")] if row.problem else []
    if row.is_cordoned:
        state.append(("cordoned", "look"))
    return Row(
        f"{broker.id} {row.path}",
        {
            "broker": {"t": str(broker.id)},
            "path": cells.text(row.path, mono=True, title=row.problem or row.path),
            "state": cells.tags(state),
            "replicas": cells.number(row.replicas),
            "size": cells.size(row.size_bytes),
            "used": _disk(row.total_bytes, row.usable_bytes),
        },
    )


def _disk(total: int | None, usable: int | None) -> cells.Cell:
    if not total or usable is None:
        return None
    return cells.bar(1 - usable / total, f"{size_text(usable)} free of {size_text(total)}")


def _sentence(rows: list[BrokerRow]) -> tuple[str, str]:
    gone = [row for row in rows if row.is_gone]
    silent = [row for row in rows if row.silent_s is not None and not row.is_gone]
    there = len(rows) - len(gone)
    if gone:
        names = ", ".join(str(row.id) for row in gone)
        return f"{several(there, 'broker')} in the cluster. Missing: {names}.", "broken"
    if silent:
        ago = cells.duration_text(silent[0].silent_s or 0)
        text = f"Broker {silent[0].id} has not answered for {ago}: what is shown of it is as old."
        return text, "look"
    controller = next((row.id for row in rows if row.is_controller), None)
    if controller is None:
        return f"{several(there, 'broker')}, and no controller: topics cannot be changed now.", "broken"
    return f"{several(there, 'broker')}. Broker {controller} is the controller.", ""
