"""The pages `/metrics`, `/livez` and `/readyz` of a broker, on the address of `klamm.http.listener`.

They are served from the moment when the broker begins to start, so that whoever waits for it hears why it is
not ready. Scrapes that come at the same time share one text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from klamm.config.listeners import Listener
from klamm.metrics.text import CONTENT_TYPE
from klamm.node.monitoring.collecting import collect
from klamm.node.monitoring.health import Health
from klamm.node.monitoring.readings import Readings
from klamm.server.http import Answer, HttpServer, Request
from klamm.server.listener import CannotListen, bound_socket, why_cannot_listen

if TYPE_CHECKING:
    from klamm.node.broker import BrokerNode

logger = logging.getLogger("klamm.node")

PORT_OPTION = "--http-port or klamm.http.listener"


class Monitoring:
    def __init__(self, node: BrokerNode, listener: Listener) -> None:
        self._node = node
        self._listener = listener
        self._readings = Readings(node.log_dirs, node.server.request_times)
        self._health = Health(node)
        self._http = HttpServer({"/metrics": self._metrics, "/livez": self._livez, "/readyz": self._readyz})
        self.address: str | None = None
        """host:port, with the port that was free if none was named; None before it is served."""
        self._keeping_time: asyncio.Task[None] | None = None
        self._scrape: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        """Raises CannotListen."""
        _, host, port = self._listener
        sock = bound_socket(host, port, PORT_OPTION)
        try:
            await self._http.start(sock)
        except OSError as error:
            sock.close()
            raise CannotListen(why_cannot_listen(host, port, error, PORT_OPTION)) from error
        self.address = str(self._listener._replace(port=sock.getsockname()[1])).partition("://")[2]
        self._keeping_time = asyncio.create_task(self._readings.keep_time(), name="klamm-loop-lag")
        logger.info("metrics and health are served on http://%s", self.address)

    async def stop(self) -> None:
        tasks = [task for task in (self._keeping_time, self._scrape) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.stop()

    async def _metrics(self, request: Request) -> Answer:
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._make_text(), name="klamm-scrape")
        return Answer(await asyncio.shield(self._scrape), CONTENT_TYPE)

    async def _make_text(self) -> bytes:
        page = await collect(self._node, self._readings)
        text = bytearray()
        for piece in page.pieces():
            text += piece
            await asyncio.sleep(0)
        return bytes(text)

    async def _livez(self, request: Request) -> Answer:
        return _state(request, "alive", None)

    async def _readyz(self, request: Request) -> Answer:
        return _state(request, "ready", await self._health.why_not_ready())


def _state(request: Request, good: str, reason: str | None) -> Answer:
    status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
    if "application/json" in request.headers.get("accept", ""):
        said = {"status": good} if reason is None else {"status": f"not {good}", "reason": reason}
        return Answer(f"{json.dumps(said)}\n".encode(), "application/json", status)
    return Answer(f"{good if reason is None else reason}\n".encode(), status=status)
