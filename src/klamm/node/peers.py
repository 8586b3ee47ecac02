"""Connections of this broker to the other brokers of its cluster.

They use the client's connections, at the address that each broker has registered for its listener for
brokers. Answers come in order on a connection, so each kind of talk has a connection of its own: a follower's
fetch that waits for records must not hold up what the controller has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from klamm.client.counters import ClientCounters
from klamm.client.errors import ConnectionFailed
from klamm.client.logs import client_logger
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.backoff import Backoff
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.opening import ConnectionSettings
from klamm.client.network.pool import ConnectionPool
from klamm.cluster.image import BrokerImage
from klamm.config.loading import BrokerConfig
from klamm.protocol.schema import Message

REPLICATION = "replication"
CONTROL = "control"
"""What the controller tells brokers, and what brokers ask of the controller."""
FORWARDING = "forwarding"
"""Requests of clients that only the controller can answer."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
"""Pauses between attempts to connect: a broker that restarts is back within a second."""


class Peers:
    def __init__(
        self,
        node_id: int,
        listener_name: str,
        config: BrokerConfig,
        brokers: Callable[[], Mapping[int, BrokerImage]],
    ) -> None:
        """`listener_name` is that of every broker's listener for brokers; `brokers` are those alive."""
        self._brokers = brokers
        self._listener_name = listener_name
        self._pool = ConnectionPool(
            ConnectionSettings(
                client_id=f"broker-{node_id}",
                setup_seconds=config.int_("socket.connection.setup.timeout.ms") / 1000,
                request_seconds=config.int_("request.timeout.ms") / 1000,
            ),
            self._address_of,
            backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            idle_seconds=config.int_("connections.max.idle.ms") / 1000,
            counters=ClientCounters(),
            logger=client_logger("peers", f"broker-{node_id}"),
        )

    def _address_of(self, broker_id: int) -> BrokerAddress:
        broker = self._brokers().get(broker_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener_name)
        if endpoint is None:
            raise ConnectionFailed(f"broker {broker_id} is not alive")
        return BrokerAddress(broker_id, endpoint.host, endpoint.port)

    async def connect(self, broker_id: int, lane: str) -> BrokerConnection:
        """An open connection; raises a ClientError if the broker cannot be reached."""
        return await self._pool.get(broker_id, lane)

    async def call(self, broker_id: int, lane: str, request: Message, timeout_s: float | None = None) -> Any:
        """Send a request in the newest version that both sides know, and return the answer."""
        connection = await self.connect(broker_id, lane)
        api_key = type(request).__api_key__
        assert api_key is not None
        return await connection.send(request, connection.version(api_key), timeout_s)

    async def tell(self, broker_id: int, request: Message) -> Any:
        """Send what the controller has to say."""
        return await self.call(broker_id, CONTROL, request)

    def on_brokers_changed(self) -> None:
        """Part with connections to brokers that have left or moved.

        Requests that are under way there fail: a broker that hangs would answer them only after their whole
        timeout, and whoever waits for a controller that was replaced would not ask the next one until then.
        """
        addresses = {
            broker_id: BrokerAddress(broker_id, endpoint.host, endpoint.port)
            for broker_id, broker in self._brokers().items()
            if (endpoint := broker.endpoints.get(self._listener_name)) is not None
        }
        self._pool.keep_only(addresses, must_fail_rest=True)

    async def close(self) -> None:
        await self._pool.close(0.0)
