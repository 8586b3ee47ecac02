"""A cluster of one broker on a real store, for tests of what happens above the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from klamm.cluster.image import BrokerImage, Endpoint
from klamm.cluster.service import ClusterService
from klamm.config.loading import BrokerConfig
from klamm.coordination.sqlite import SqliteStore

TIME_LIMIT_S = 30


def broker(broker_id: int = 1, rack: str | None = None) -> BrokerImage:
    endpoints = {"PLAINTEXT": Endpoint("localhost", 9092), "INSIDE": Endpoint("inside", 9093)}
    return BrokerImage(broker_id, endpoints, rack)


class Cluster:
    """Opens and closes services over one store file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "store.db"
        self._stores: list[SqliteStore] = []

    async def start(self, settings: dict[str, str] | None = None) -> ClusterService:
        store = SqliteStore(self.path)
        await store.open()
        self._stores.append(store)
        config = BrokerConfig(settings or {})
        service = ClusterService(store, config)
        await service.load(broker(config["node.id"]))
        return service

    async def store(self) -> SqliteStore:
        store = SqliteStore(self.path)
        await store.open()
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def run(directory: Path, scenario: Callable[[Cluster], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        cluster = Cluster(directory)
        try:
            return await asyncio.wait_for(scenario(cluster), TIME_LIMIT_S)
        finally:
            await cluster.close()

    return asyncio.run(main())
