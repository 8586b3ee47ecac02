"""What the endpoints of the JSON API share: the picture, the query of a table, and errors as JSON."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from klamm.client.errors import BatchFailed, BrokerError, ClientError, ClientMisused
from klamm.console.api.plain import plain
from klamm.console.changing import ReadOnly
from klamm.console.console import FIRST_PICTURE_S, Console
from klamm.console.views.paging import MOST_ROWS_PER_PAGE, ROWS_PER_PAGE, Query
from klamm.console.watching.picture import Picture
from klamm.model.errors import ErrorCode
from klamm.operating.errors import CannotDo

_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})


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
    return answer({"error": _text(error)}, _status(error))


def _text(error: Exception) -> str:
    if not isinstance(error, RequestValidationError):
        return str(error)
    wrong = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return f"the request is not valid: {'; '.join(wrong)}"


def _status(error: Exception) -> int:
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, ReadOnly):
        return 403
    if isinstance(error, (CannotDo, BatchFailed)):
        return 409
    if isinstance(error, BrokerError):
        return 404 if error.code in _NOT_THERE else 409
    return 400 if isinstance(error, (ClientMisused, RequestValidationError)) else 502


ERRORS: tuple[type[Exception], ...] = (ApiError, CannotDo, ClientError, RequestValidationError)
