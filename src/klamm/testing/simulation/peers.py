"""How simulated brokers ask one another: messages of the protocol, not encoded, over the simulated network.

It does what `node/peers.py` does: a broker knows the addresses of those alone that its image has alive, and
requests to one that has left fail at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from klamm.client.errors import ConnectionFailed
from klamm.cluster.image import BrokerImage
from klamm.protocol.schema import Message
from klamm.testing.simulation.network import Network, Node

REQUEST_S = 3.0
"""request.timeout.ms. Less than brokers have by default: an outcome that is not known is what to look for."""


def broker_name(broker_id: int) -> str:
    return f"broker{broker_id}"


class SimulatedPeers:
    def __init__(
        self, owner: Node, network: Network, brokers: Callable[[], Mapping[int, BrokerImage]]
    ) -> None:
        self._owner = owner
        self._network = network
        self._brokers = brokers
        self._under_way: dict[asyncio.Future[Any], int] = {}

    async def call(self, broker_id: int, lane: str, request: Message, timeout_s: float | None = None) -> Any:
        if broker_id not in self._brokers():
            raise ConnectionFailed(f"broker {broker_id} is not alive")
        future = self._network.call(
            self._owner, broker_name(broker_id), "message", request, timeout_s or REQUEST_S
        )
        self._under_way[future] = broker_id
        try:
            response = await future
        finally:
            del self._under_way[future]
        if response is None:
            raise ConnectionFailed(f"broker {broker_id} did not answer")
        return response

    async def tell(self, broker_id: int, request: Message) -> Any:
        return await self.call(broker_id, "control", request)

    def on_brokers_changed(self) -> None:
        alive = self._brokers()
        for future, broker_id in list(self._under_way.items()):
            if broker_id not in alive and not future.done():
                future.set_exception(ConnectionFailed(f"broker {broker_id} has left"))
