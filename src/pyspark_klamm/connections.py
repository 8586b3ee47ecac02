"""The connections of tasks and the driver to a cluster.

A connection runs the client's network on an event loop in a thread of its own, so that answers arrive while
the task's thread decodes or writes to Spark. Connections are kept for the next task (`kept`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from klamm.client.admin.calls import AdminCalls
from klamm.client.consumer.fetch_requests import FetchSettings
from klamm.client.consumer.offsets import OffsetLookup
from klamm.client.errors import ClientError
from klamm.client.network.network import Network
from klamm.client.plain.runner import LoopThread
from klamm.config.client_config import ClientConfig
from pyspark_klamm.kept import KeptClients

T = TypeVar("T")

MOST_CONNECTIONS = 8
"""How many connections a process keeps: one per cluster and login, of which a session has few."""


class Connection:
    """A client's connection to one cluster. Its coroutines run on `thread`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.config = ClientConfig("consumer", config=settings)
        self.fetch_settings = FetchSettings.of(self.config)
        self.timeout_seconds = self.config.seconds("default.api.timeout.ms")
        self.thread = LoopThread(f"klamm-spark-{os.getpid()}")
        self.network = self.thread.run(_started(self.config))
        self.calls = AdminCalls(self.network)
        self.lookup = OffsetLookup(self.network, is_read_committed=self.fetch_settings.is_read_committed)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        return self.thread.run(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; the returned future has its result."""
        return asyncio.run_coroutine_threadsafe(work, self.thread.loop)

    def close(self) -> None:
        with contextlib.suppress(ClientError):  # closed already, or forked away
            self.thread.run(self.network.close())
        self.thread.close()


async def _started(config: ClientConfig) -> Network:
    network = Network(config)
    await network.start()
    return network


_connections = KeptClients(MOST_CONNECTIONS, Connection, Connection.close)


def connection_for(settings: Mapping[str, str]) -> Connection:
    """This process's connection with these settings."""
    return _connections.get(settings)


def close_connections() -> None:
    """Close the connections that this process keeps."""
    _connections.close_all()
