"""The connections of one client, by broker and lane.

What always holds: at most one connection per broker and lane is open or being opened, and all callers that
need it wait for the same one. After each failed attempt the pause before the next one to the same broker
doubles. A connection that was not used for connections.max.idle.ms is closed. After `close` no task and no
socket is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from klamm.client.counters import ClientCounters
from klamm.client.errors import ClientClosed, ConnectionFailed, TlsFailed
from klamm.client.logs import ClientLogger
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.backoff import Backoff, Health
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.opening import ConnectionSettings, open_connection

CLOSE_SECONDS = 2.0
"""How long `close` waits until sockets have sent what was written, before it aborts them."""

IDLE_LOOKS = 4
"""How often, within connections.max.idle.ms, unused connections are looked for."""

PoolKey = tuple[int, str]
"""A node id and a lane."""


class ConnectionPool:
    """`address_of` returns the address of a broker, or raises an error, which `get` then raises."""

    def __init__(
        self,
        settings: ConnectionSettings,
        address_of: Callable[[int], BrokerAddress],
        *,
        backoff: Backoff,
        idle_seconds: float,
        counters: ClientCounters,
        logger: ClientLogger,
    ) -> None:
        self._settings = settings
        self._address_of = address_of
        self._backoff = backoff
        self._idle_seconds = idle_seconds
        self._counters = counters
        self._logger = logger
        self._connections: dict[PoolKey, BrokerConnection] = {}
        self._opening: dict[PoolKey, asyncio.Task[BrokerConnection]] = {}
        self._leaving: set[BrokerConnection] = set()
        """Connections that are out of use, but whose sockets are not closed yet."""
        self._health: dict[str, Health] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._has_met_broker = False
        self.is_closed = False

    def find(self, node_id: int, lane: str) -> BrokerConnection | None:
        """The open connection; None if there is none."""
        connection = self._connections.get((node_id, lane))
        return None if connection is None or connection.closed else connection

    async def get(self, node_id: int, lane: str) -> BrokerConnection:
        """The connection, opened if there is none. Waits for the pause after a failed attempt."""
        connection = self.find(node_id, lane)
        if connection is not None:
            return connection
        self.check_open()
        key = (node_id, lane)
        task = self._opening.get(key)
        if task is None:
            address = self._address_of(node_id)
            task = asyncio.get_running_loop().create_task(
                self._open(address, lane), name=f"klamm-connect-{address.endpoint}"
            )
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClientClosed("the client was closed while it connected") from None
            raise

    def wait(self, address: BrokerAddress, now: float) -> float:
        """The seconds until the next attempt to connect to a broker."""
        health = self._health.get(address.endpoint)
        return health.wait(now) if health is not None else 0.0

    def last_failure(self, address: BrokerAddress) -> Exception | None:
        """Why the latest attempt to connect to a broker failed; None if it succeeded."""
        health = self._health.get(address.endpoint)
        return health.reason if health is not None else None

    def keep_only(self, brokers: Mapping[int, BrokerAddress], *, must_fail_rest: bool = False) -> None:
        """Retire the connections to brokers that moved or left the cluster. Connections to addresses that the
        user gave are from now on found by the node id of their broker.

        Requests that are under way on a retired connection are still answered; or, with `must_fail_rest`,
        they fail at once.
        """
        by_endpoint = {address.endpoint: address for address in brokers.values()}
        for (node_id, lane), connection in list(self._connections.items()):
            at = brokers.get(node_id)
            if at is not None and at.endpoint == connection.address.endpoint:
                continue
            self._part_with((node_id, lane))
            known = by_endpoint.get(connection.address.endpoint)
            if node_id < 0 and known is not None and self.find(known.node_id, lane) is None:
                self._rename(connection, known, lane)
            elif must_fail_rest:
                connection.close(ConnectionFailed(f"{connection.address} has left the cluster"))
            else:
                connection.retire()
        for endpoint in [each for each in self._health if each not in by_endpoint]:
            if not self._health[endpoint].failures:
                del self._health[endpoint]

    def longest_silence(self, now: float) -> str | None:
        """Which broker has not answered for the longest time, as a sentence for an error."""
        waits = [
            (wait[1], f"{connection.address} has not answered {wait[0]} for {wait[1]:.3g} s")
            for connection in self._connections.values()
            if (wait := connection.longest_wait(now)) is not None
        ]
        return max(waits)[1] if waits else None

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections. Requests that were written already are still sent, within CLOSE_SECONDS or
        less.
        """
        seconds = CLOSE_SECONDS if timeout is None else min(timeout, CLOSE_SECONDS)
        self.is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections = {*self._connections.values(), *self._leaving}
        self._connections.clear()
        for connection in connections:
            connection.close()
        if connections:
            _, late = await asyncio.wait([each.gone for each in connections], timeout=seconds)
            if late:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(late)
        renewals = [each.renewal for each in connections if each.renewal is not None]
        await asyncio.gather(*renewals, return_exceptions=True)

    def check_open(self) -> None:
        if self.is_closed:
            raise ClientClosed("the client was closed")

    # ---- making connections

    async def _open(self, address: BrokerAddress, lane: str) -> BrokerConnection:
        loop = asyncio.get_running_loop()
        health = self._health.setdefault(address.endpoint, Health())
        wait = health.wait(loop.time())
        if wait:
            await asyncio.sleep(wait)
        try:
            connection = await open_connection(address, self._settings, self._counters)
        except Exception as error:
            health.failed(loop.time(), self._backoff, random.random(), error)
            self._logger.debug("no connection to %s: %s", address, error)
            if isinstance(error, TlsFailed) and not self._has_met_broker:
                # A broker that restarts breaks the handshake, too. But if no broker was ever reached, the
                # port or the protocol is more likely wrong.
                error.retriable = False
            raise
        health.succeeded()
        self._has_met_broker = True
        key = (address.node_id, lane)
        if key in self._connections:  # `keep_only` found another connection to it
            self._part_with(key).retire()
        self._connections[key] = connection
        self._watch_idle()
        return connection

    def _opened(self, key: PoolKey, task: asyncio.Task[BrokerConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as seen: callers that wait get it anyway

    # ---- parting with connections

    def _part_with(self, key: PoolKey) -> BrokerConnection:
        """Take a connection out of use. `close` still closes it if its socket is open."""
        connection = self._connections.pop(key)
        self._leaving.add(connection)
        connection.gone.add_done_callback(lambda _: self._leaving.discard(connection))
        return connection

    def _rename(self, connection: BrokerConnection, address: BrokerAddress, lane: str) -> None:
        """The connection was made to an address that the user gave, which turned out to be this broker's."""
        self._leaving.discard(connection)
        connection.address = address
        connection.node_id = address.node_id
        self._connections[address.node_id, lane] = connection

    def _watch_idle(self) -> None:
        if self._idle_seconds > 0 and self._idle_timer is None and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle_seconds / IDLE_LOOKS, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        now = asyncio.get_running_loop().time()
        for key, connection in list(self._connections.items()):
            if connection.closed:
                del self._connections[key]
            elif not connection.in_flight and now - connection.last_used >= self._idle_seconds:
                self._logger.debug("closing the unused connection to %s", connection.address)
                self._part_with(key).close()
        if self._connections:
            self._watch_idle()
