"""The web application: the guard around the JSON API, the assets, and the pages of NiceGUI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from nicegui import ui
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from klamm.console.api.acting import add_acting
from klamm.console.api.asking import ERRORS, ApiError, answer, error_answer
from klamm.console.api.messages import add_messages
from klamm.console.api.pipelines import add_pipelines
from klamm.console.api.reading import add_reading
from klamm.console.console import FIRST_PICTURE_S, Console
from klamm.console.guard.guard import Application, Guard, Rules
from klamm.console.guard.origins import LOOPBACK_NAMES
from klamm.console.pages.registry import PLACES, ROUTES
from klamm.console.shell.frame import Frame
from klamm.console.shell.visit import Visit

ASSETS = Path(__file__).parent / "shell/assets"
HEAD = (
    '<script src="/assets/theme.js"></script>'
    '<link rel="stylesheet" href="/assets/console.css">'
    '<link rel="stylesheet" href="/assets/messages.css">'
    '<script defer src="/assets/console.js"></script>'
)
COMPRESSION_LEVEL = 4
LEAST_COMPRESSED_BYTES = 2_000
RECONNECT_S = 20.0
"""How long a browser that lost its connection finds its page as it was."""


def make_application(console: Console) -> Application:
    """The application of one console. NiceGUI allows one per process."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await console.collector.start()
        try:
            yield
        finally:
            await console.pipelines.close()
            await console.changes.close()
            await console.collector.close()

    # The pages that FastAPI has for its API load scripts from another host.
    app = FastAPI(
        title="Klamm console",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    for kind in ERRORS:
        app.add_exception_handler(kind, error_answer)
    app.include_router(_api(app, console))
    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    app.add_api_route("/livez", _alive, methods=["GET"], include_in_schema=False)
    _add_pages(app, console)
    # Compressed last: the guard writes into pages.
    return GZipMiddleware(
        Guard(app, _rules(console)), minimum_size=LEAST_COMPRESSED_BYTES, compresslevel=COMPRESSION_LEVEL
    )


def _rules(console: Console) -> Rules:
    settings = console.settings
    names = None if settings.password_hash is not None else LOOPBACK_NAMES | {settings.host.lower()}
    return Rules(settings.password_hash, names)


async def _alive() -> JSONResponse:
    return answer({"alive": True})


def _api(app: FastAPI, console: Console) -> APIRouter:
    router = APIRouter(prefix="/api/v1")

    @router.get("")
    async def contents() -> JSONResponse:
        """The list of endpoints."""
        schema = app.openapi()
        return answer(
            {
                "endpoints": [
                    {"method": method.upper(), "path": path, "what": one.get("description", "")}
                    for path, methods in schema["paths"].items()
                    for method, one in methods.items()
                ]
            }
        )

    add_reading(router, console)
    add_messages(router, console)
    add_acting(router, console)
    add_pipelines(router, console)

    @router.api_route(
        "/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
    )
    async def nothing(path: str) -> JSONResponse:
        raise ApiError(404, f"there is no /api/v1/{path}; /api/v1 lists what there is")

    return router


def _add_pages(app: FastAPI, console: Console) -> None:
    ui.add_head_html(HEAD, shared=True)

    async def root(request: Request) -> None:
        await console.collector.seen(FIRST_PICTURE_S)
        visit = Visit(console, ui.context.client)
        Frame(visit, PLACES, ROUTES)

    root.__annotations__ = {"request": Request}
    ui.run_with(
        app,
        root=root,
        title="Klamm",
        favicon=ASSETS / "icon.svg",
        dark=None,
        tailwind=False,
        reconnect_timeout=RECONNECT_S,
        gzip_middleware_factory=None,
        show_welcome_message=False,
    )
