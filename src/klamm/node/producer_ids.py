"""Producer ids, taken from the cluster a block at a time so that most requests touch no store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from klamm.cluster.service import ClusterService


class ProducerIdBlocks:
    """After a restart a new block is begun: what is left of the old one is lost, and no id is given twice."""

    def __init__(self, cluster: ClusterService) -> None:
        self._cluster = cluster
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._cluster.next_producer_id_block())
            return next(self._block)
