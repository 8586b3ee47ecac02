"""Tables: the server searches, sorts and cuts; the browser gets one page, and the URL says which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from klamm.console.addresses import with_query
from klamm.console.shell.cells import Cell
from klamm.console.shell.visit import Visit
from klamm.console.views.paging import Query


@dataclass(frozen=True)
class Column:
    """A column. Numbers stand at the right, and are sorted the largest first. `hide`: "narrow" leaves the
    column out below 1,100 px and on phones, "phone" on phones only."""

    key: str
    label: str
    right: bool = False
    sort: bool = True
    hide: str = ""

    def as_prop(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "label": self.label,
            "right": self.right,
            "sort": self.sort,
            "hide": self.hide,
        }


@dataclass(frozen=True)
class Row:
    """A row: cells by the key of their column, the page that it opens, and actions that it offers."""

    id: str
    cells: Mapping[str, Cell]
    href: str = ""
    actions: Sequence[tuple[str, str]] = ()

    def as_prop(self) -> dict[str, Any]:
        prop: dict[str, Any] = {"id": self.id, "cells": dict(self.cells)}
        if self.href:
            prop["href"] = self.href
        if self.actions:
            prop["actions"] = [{"key": key, "label": label} for key, label in self.actions]
        return prop


@dataclass(frozen=True)
class Listing:
    """The rows of one page. `total` are the rows of all pages."""

    rows: Sequence[Row]
    page: int = 1
    pages: int = 1
    total: int | None = None


@dataclass(frozen=True)
class Filter:
    """A chip above the table, which is on or off."""

    key: str
    label: str
    title: str = ""


@dataclass(frozen=True)
class Empty:
    """What a table without rows says: what is missing, why, and the command that helps."""

    title: str
    text: str = ""
    command: str = ""

    def as_prop(self) -> dict[str, str]:
        return {"title": self.title, "text": self.text, "command": self.command}


@dataclass
class TableSettings:
    """How a table behaves. `path`: the page whose URL says what is shown, or ""."""

    path: str = ""
    default_sort: str = ""
    search: bool = True
    placeholder: str = "Search"
    filters: Sequence[Filter] = ()
    empty: Empty = field(default_factory=lambda: Empty("Nothing here"))
    act: Callable[[str, str], Any] | None = None
    """Called with the id of a row and the key of the action that was chosen."""


class Table(Element, component="klamm_table.js"):
    """A table of `columns` whose rows `load` returns for a query. It loads anew with each new picture."""

    def __init__(
        self,
        visit: Visit,
        columns: Sequence[Column],
        load: Callable[[Query], Listing],
        settings: TableSettings | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._visit = visit
        self._load = load
        self._settings = settings or TableSettings(search=False)
        self._columns = {column.key: column for column in columns}
        self._query = Query.of(query or {}, self._settings.default_sort)
        self._props["columns"] = [column.as_prop() for column in columns]
        self._props["placeholder"] = self._settings.placeholder
        self._props["search"] = self._query.search if self._settings.search else None
        self._props["empty"] = self._settings.empty.as_prop()
        self._props["perPage"] = self._query.per_page
        self.on("sort", self._sort)
        self.on("page", lambda event: self._ask(replace(self._query, page=int(event.args))))
        self.on("search", lambda event: self._ask(replace(self._query, search=str(event.args), page=1)))
        self.on("filter", self._filter)
        if self._settings.act is not None:
            self.on("act", self._act)
        self.reload()
        visit.on_picture(self.reload)

    def reload(self) -> None:
        """Load the rows of the query, and show them if they are others than before."""
        listing = self._load(self._query)
        total = len(listing.rows) if listing.total is None else listing.total
        props = {
            "rows": [row.as_prop() for row in listing.rows],
            "sort": self._query.sort,
            "page": listing.page,
            "pages": listing.pages,
            "total": total if listing.pages > 1 or self._settings.search else 0,
            "filters": [
                {"key": one.key, "label": one.label, "title": one.title, "on": one.key in self._query.filters}
                for one in self._settings.filters
            ],
        }
        if any(self._props.get(name) != value for name, value in props.items()):
            self._props.update(props)
            self.update()

    def _sort(self, event: GenericEventArguments) -> None:
        column = self._columns.get(str(event.args))
        if column is not None and column.sort:
            self._ask(self._query.sorted_by(column.key, first_descending=column.right))

    def _filter(self, event: GenericEventArguments) -> None:
        key = str(event.args)
        if key not in {one.key for one in self._settings.filters}:
            return
        kept = tuple(one for one in self._query.filters if one != key)
        chosen = kept if key in self._query.filters else (*kept, key)
        self._ask(replace(self._query, filters=chosen, page=1))

    def _act(self, event: GenericEventArguments) -> Any:
        assert self._settings.act is not None
        return self._settings.act(str(event.args["row"]), str(event.args["action"]))

    def _ask(self, query: Query) -> None:
        self._query = query
        self.reload()
        if self._settings.path:
            self._visit.replace_url(
                with_query(self._settings.path, query.as_texts(self._settings.default_sort))
            )
