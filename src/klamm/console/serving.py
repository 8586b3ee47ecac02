"""Runs a console until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from klamm.console.application import make_application
from klamm.console.changing import Changes
from klamm.console.console import Console, Settings
from klamm.console.watching.asking import Asking
from klamm.console.watching.collector import Collector
from klamm.console.watching.pipelines import PipelineWatch

STOP_PATIENCE_S = 2
"""How long browsers may take to let go of their connections."""


def serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a socket that is bound already; `ready` is called when requests are answered."""
    asyncio.run(_serve(settings, listener, ready))


async def _serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    collector = Collector(Asking(settings.bootstrap, settings.config))
    changes = Changes(settings.bootstrap, settings.config, collector, is_read_only=settings.is_read_only)
    pipelines = PipelineWatch(settings.projects, settings.bootstrap, settings.config)
    collector.accompany = pipelines.accompany
    console = Console(settings, collector, changes, pipelines)
    application = make_application(console)
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_PATIENCE_S,
    )
    await _Server(config, ready).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells `ready` when it has started."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
