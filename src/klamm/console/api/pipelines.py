"""The endpoints of pipelines: their graph, their status, their tables, their dead-letter records."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from klamm.console.addresses import name_of
from klamm.console.api.asking import ApiError, answer, picture_of
from klamm.console.console import Console
from klamm.console.views.graph import graph
from klamm.console.views.pipelines import pipeline_row, pipeline_rows
from klamm.console.watching.history import SHORT_RANGE_MS
from klamm.console.watching.pipelines import BATCH, IN, LAG, OUT, REFUSED, series
from klamm.operating.pipelines import tables
from klamm.operating.pipelines.looking import PipelineState

MOST_DEAD_LETTERS = 1_000
MOST_RANGE_S = 6 * 3600


def add_pipelines(router: APIRouter, console: Console) -> None:
    """Add the endpoints. A pipeline is named as `<project>.<pipeline>`."""
    watch = console.pipelines

    @router.get("/pipelines")
    async def listed() -> JSONResponse:
        """All pipelines with rates, lag, batch time and refused rows; and what is wrong with the projects."""
        await picture_of(console)
        projects = [
            {"name": each.name, "folder": str(each.folder), "problems": each.problems}
            for each in watch.projects
        ]
        return answer({"projects": projects, "pipelines": pipeline_rows(watch)})

    @router.get("/pipelines/graph")
    async def flow() -> JSONResponse:
        """What flows: nodes (producers, topics, pipelines, tables, groups), edges with records per second."""
        return answer(graph(watch, await picture_of(console), console.collector.history))

    @router.get("/pipelines/{pipeline}")
    async def one(pipeline: str) -> JSONResponse:
        """One pipeline."""
        await picture_of(console)
        return answer(pipeline_row(watch, known(pipeline)))

    @router.get("/pipelines/{pipeline}/history")
    async def charts(pipeline: str, range_s: int = SHORT_RANGE_MS // 1000) -> JSONResponse:
        """Rates, lag and batch time over time: pairs of a time in milliseconds and a value."""
        picture = await picture_of(console)
        key = known(pipeline).key
        range_ms = min(max(range_s, 1), MOST_RANGE_S) * 1000
        return answer(
            {
                kind: watch.history.points(series(kind, key), picture.taken_ms, range_ms)
                for kind in (IN, OUT, REFUSED, LAG, BATCH)
            }
        )

    @router.get("/pipelines/{pipeline}/rows")
    async def rows(pipeline: str, request: Request) -> JSONResponse:
        """The newest rows of the table that a pipeline writes: limit."""
        limit = request.query_params.get("limit", str(tables.MOST_ROWS))
        if not limit.isdecimal() or not 0 < int(limit) <= 1_000:
            raise ApiError(400, f"limit={limit} is not a number from 1 to 1000")
        found = await watch.rows(known(pipeline).key, int(limit))
        if found is None:
            raise ApiError(404, f"there is no table of {pipeline} yet")
        return answer(found)

    @router.get("/pipelines/{pipeline}/versions")
    async def versions(pipeline: str) -> JSONResponse:
        """The versions of the table that a pipeline writes, the newest first."""
        return answer({"versions": await watch.versions(known(pipeline).key)})

    @router.get("/pipelines/{pipeline}/dead-letters")
    async def dead_letters(pipeline: str, rule: str = "", limit: int = 50) -> JSONResponse:
        """The newest dead-letter records of a pipeline with their reasons, and how many each rule has: rule,
        limit."""
        most = min(max(limit, 1), MOST_DEAD_LETTERS)
        picture = await picture_of(console)
        return answer(await watch.dead_letters(picture, known(pipeline).key, rule, most))

    @router.get("/pipelines/{pipeline}/redrive")
    async def redrive_state(pipeline: str) -> JSONResponse:
        """The redrive of a pipeline that runs, or the last one: its output, and how it ended."""
        found = watch.latest_redrive(known(pipeline).key)
        if found is None:
            raise ApiError(404, f"this console has redriven nothing of {pipeline}")
        return answer(found)

    @router.post("/pipelines/{pipeline}/redrive")
    async def redrive(pipeline: str, request: Request) -> JSONResponse:
        """Bring dead-letter records into the pipeline's table: rule, dry_run. With dry_run only says what it
        would do."""
        console.changes.check_allowed()
        try:
            asked = await request.json()
            rule, is_dry = str(asked.get("rule", "")), asked.get("dry_run", False) is True
        except (ValueError, AttributeError):
            raise ApiError(400, "expected a JSON object with rule and dry_run") from None
        key = known(pipeline).key
        if is_dry:
            return answer(await watch.preview_redrive(key, rule))
        return answer(watch.start_redrive(key, rule), 202)

    def known(given: str) -> PipelineState:
        found = watch.find(name_of(given))
        if found is None:
            raise ApiError(404, f"there is no pipeline {name_of(given)!r}")
        return found
