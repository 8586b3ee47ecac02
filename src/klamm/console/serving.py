"""Runs a console until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from klamm.console.application import make_application
from klamm.console.changing import Changes
from klamm.console.console import Console, Settings
from klamm.console.watching.asking import Asking
from klamm.console.watching.collector import Collector
from klamm.console.watching.pipelines import PipelineWatch

STOP_PATIENCE_S = 2
"""How long browsers may take to let go of their connections."""


def serve(
    settings: Settings, listener: socket.socket, ready: Callable[[], None], *, stops_with_stdin: bool = False
) -> None:
    """Serve on a socket that is bound already; `ready` is called when requests are answered."""
    asyncio.run(_serve(settings, listener, ready, stops_with_stdin))


async def _serve(
    settings: Settings, listener: socket.socket, ready: Callable[[], None], stops_with_stdin: bool
) -> None:
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
    server = _Server(config, ready)
    if stops_with_stdin:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), server.stop_at_end_of_input)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells `ready` when it has started. A signal that has stopped it is not raised again: uvicorn would end
    the process by that signal, and a clean stop is a success."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def stop_at_end_of_input(self) -> None:
        """The standard input can be read: at its end its writer, who started this console, is gone."""
        if not os.read(sys.stdin.fileno(), 1024):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True


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
