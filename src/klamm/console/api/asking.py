"""What the endpoints of the JSON API share: the picture, the query of a table, and errors as JSON."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from klamm.client.errors import ClientError
from klamm.console.api.plain import plain
from klamm.console.console import FIRST_PICTURE_S, Console
from klamm.console.views.paging import MOST_ROWS_PER_PAGE, ROWS_PER_PAGE, Query
from klamm.console.watching.picture import Picture
from klamm.operating.errors import CannotDo


class ApiError(Exception):
    """An answer that is not the one that was asked for. The text says what happened and what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def picture_of(console: Console) -> Picture:
    """The picture, for an endpoint. Asking counts as looking."""
    picture = await console.collector.seen(FIRST_PICTURE_S)
    if picture is None:
        why = console.collector.problem or "it has not answered yet"
        raise ApiError(503, f"there is nothing to show of {console.settings.bootstrap}: {why}")
    return picture


def query_of(request: Request, default_sort: str) -> Query:
    """The part of a table that is asked for: search, sort, page, per_page, show."""
    query = Query.of(request.query_params, default_sort)
    wanted = request.query_params.get("per_page", str(ROWS_PER_PAGE))
    if not wanted.isdecimal() or not 0 < int(wanted) <= MOST_ROWS_PER_PAGE:
        raise ApiError(400, f"per_page={wanted} is not a number from 1 to {MOST_ROWS_PER_PAGE}")
    return Query(query.search, query.sort, query.page, int(wanted), query.filters)


def answer(value: Any, status: int = 200) -> JSONResponse:
    return JSONResponse(plain(value), status, headers={"cache-control": "no-store"})


def error_answer(request: Request, error: Exception) -> JSONResponse:
    """An error as JSON: {"error": "what happened, to what, what to do"}."""
    status = error.status if isinstance(error, ApiError) else 409 if isinstance(error, CannotDo) else 502
    return answer({"error": str(error)}, status)


ERRORS: tuple[type[Exception], ...] = (ApiError, CannotDo, ClientError)
