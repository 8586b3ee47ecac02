"""One page of a long table: searched, sorted and cut on the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")

ROWS_PER_PAGE = 50
MOST_ROWS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Query:
    """What of a table is wanted. `sort` is the name of a column, with a minus before it for descending."""

    search: str = ""
    sort: str = ""
    page: int = 1
    per_page: int = ROWS_PER_PAGE
    filters: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Mapping[str, str], default_sort: str = "") -> Query:
        """From the query of a URL; what is not valid counts as not given."""
        page = texts.get("page", "1")
        return cls(
            texts.get("search", ""),
            texts.get("sort", default_sort),
            int(page) if page.isdecimal() and 0 < int(page) < 10**9 else 1,
            filters=tuple(one for one in texts.get("show", "").split(",") if one),
        )

    def as_texts(self, default_sort: str = "") -> dict[str, str]:
        """The query of a URL; what is as usual is left out."""
        texts = {
            "search": self.search,
            "sort": "" if self.sort == default_sort else self.sort,
            "page": str(self.page) if self.page > 1 else "",
            "show": ",".join(self.filters),
        }
        return {name: text for name, text in texts.items() if text}

    @property
    def column(self) -> str:
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.sort.startswith("-")

    def sorted_by(self, column: str, *, first_descending: bool) -> Query:
        """The query after a click on the head of a column: that column, or the other direction."""
        if self.column == column:
            sort = column if self.is_descending else f"-{column}"
        else:
            sort = f"-{column}" if first_descending else column
        return replace(self, sort=sort, page=1)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """The rows of one page; `total` are all that were found, `of` all that there are."""

    rows: Sequence[Row]
    page: int
    pages: int
    total: int
    of: int


def page_of(
    rows: Sequence[Row],
    query: Query,
    *,
    name: Callable[[Row], str],
    columns: Mapping[str, Callable[[Row], Any]],
) -> Page[Row]:
    """Search by name, sort by a column, cut. Rows without a value of the column are last."""
    found = list(rows)
    if query.search:
        words = query.search.lower().split()
        found = [row for row in found if all(word in name(row).lower() for word in words)]
    found.sort(key=name)
    value = columns.get(query.column)
    if value is not None:
        known = [row for row in found if value(row) is not None]
        unknown = [row for row in found if value(row) is None]
        known.sort(key=value, reverse=query.is_descending)
        found = known + unknown
    pages = max(1, -(-len(found) // query.per_page))
    page = min(query.page, pages)
    start = (page - 1) * query.per_page
    return Page(found[start : start + query.per_page], page, pages, len(found), len(rows))
