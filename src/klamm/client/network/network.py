"""The client's way to the cluster: connections to brokers, pooled; metadata, kept fresh; coordinators, found.

Connections are pooled by broker and lane, because answers come in order on a connection: a fetch that waits
for records must not hold up a heartbeat. A broker that could not be reached is left alone for a while. When
no broker that is known answers, the addresses the user gave are tried again. Everything here runs on one
event loop; `close` ends every task and socket.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from klamm.client.counters import ClientCounters
from klamm.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    NoBrokerReachable,
    TimedOut,
)
from klamm.client.logs import client_logger
from klamm.client.network.addresses import BrokerAddress, parse_bootstrap
from klamm.client.network.backoff import Backoff, Health
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.metadata import MetadataCache, MetadataChange, TopicMetadata
from klamm.client.network.opening import ConnectionSettings, open_connection
from klamm.client.network.refreshing import MetadataRefresher
from klamm.config.client_config import ClientConfig
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.schema import Message

T = TypeVar("T")

GENERAL = "general"

CLOSE_SECONDS = 2.0
"""How long `close` waits for sockets to send what was written before it drops them."""

LEAST_SHARE_SECONDS = 1.0
"""What one broker gets at least of the time that is shared by all that may be asked."""

DEADLINE_GRACE_SECONDS = 0.1
"""How much later than its requests a whole call is given up: the request's own error says more."""

IDLE_LOOKS = 4
"""How often, within connections.max.idle.ms, unused connections are looked for."""

_FIRST_BATCHED_FIND_COORDINATOR = 4
_NEVER = float("inf")

_deadline: ContextVar[float] = ContextVar("deadline", default=_NEVER)
"""When the call around a request gives up, so that the request gives up first and says why."""


class Versioned(NamedTuple):
    """A request that looks different from version to version: its class, and how to make it for one."""

    cls: type[Message]
    build: Callable[[int], Message]


class Network:
    """One client's connections and its knowledge of the cluster."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        ssl_context: ssl.SSLContext | None = None,
        counters: ClientCounters | None = None,
    ) -> None:
        self.config = config
        self.client_id = config.str_("client.id")
        self.counters = counters if counters is not None else ClientCounters()
        self.metadata = MetadataCache()
        self._logger = client_logger("network", self.client_id)
        self._bootstrap = parse_bootstrap(config.list_("bootstrap.servers"))
        self._settings = connection_settings(config, ssl_context)
        self._request_seconds = config.seconds("request.timeout.ms")
        self._idle_seconds = config.seconds("connections.max.idle.ms")
        self._retry_backoff = Backoff(
            config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")
        )
        self._reconnect_backoff = Backoff(
            config.seconds("reconnect.backoff.ms"), config.seconds("reconnect.backoff.max.ms")
        )
        self._health: dict[str, Health] = {}
        self._pool: dict[tuple[int, str], BrokerConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[BrokerConnection]] = {}
        self._leaving: set[BrokerConnection] = set()
        self._coordinators: dict[str, int] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._refresher = MetadataRefresher(
            self.metadata,
            self._ask_metadata,
            backoff=self._retry_backoff,
            max_age_seconds=config.seconds("metadata.max.age.ms"),
            create_topics=_creates_topics(config),
            logger=self._logger,
        )
        self._refresher.on_change(self._brokers_changed)

    # ---- life

    async def start(self) -> None:
        """Begin. Nothing is connected before it is needed."""
        self._check_open()
        self._refresher.start()

    async def close(self) -> None:
        """End all tasks and connections. What was written already is still sent, within CLOSE_SECONDS."""
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        await self._refresher.close()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections = {*self._pool.values(), *self._leaving}
        self._pool.clear()
        self._leaving.clear()
        for connection in connections:
            connection.close()
        gone = [connection.gone for connection in connections]
        if gone:
            _, late = await asyncio.wait(gone, timeout=CLOSE_SECONDS)
            if late:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(late)

    # ---- requests

    async def call(
        self,
        node_id: int,
        request: Message | Versioned,
        *,
        lane: str = GENERAL,
        timeout: float | None = None,
        max_version: int | None = None,
    ) -> Any:
        """One attempt at one broker: connects if need be, sends, and returns the decoded answer."""
        loop = asyncio.get_running_loop()
        seconds = self._request_seconds if timeout is None else timeout
        deadline = min(loop.time() + seconds, _deadline.get())
        api_key = request.cls.__api_key__ if isinstance(request, Versioned) else request.__api_key__
        assert api_key is not None
        connection = self._pool.get((node_id, lane))
        if connection is None or connection.closed or not connection.writable:
            connection = await self._ready(node_id, lane, api_key, seconds, deadline)
        version = connection.version(api_key, max_version)
        message = request.build(version) if isinstance(request, Versioned) else request
        return await connection.send(message, version, max(deadline - loop.time(), 0.0))

    async def call_any(
        self,
        request: Message | Versioned,
        *,
        timeout: float | None = None,
        max_version: int | None = None,
    ) -> Any:
        """The answer of any broker: those that are connected first, the addresses of the user last.

        Each is tried once at most. An error that no other broker could answer better is raised at once.
        """
        loop = asyncio.get_running_loop()
        seconds = self._request_seconds if timeout is None else timeout
        deadline = min(loop.time() + seconds, _deadline.get())
        candidates = self._candidates(loop.time())
        failures: list[ClientError] = []
        for index, address in enumerate(candidates):
            left = deadline - loop.time()
            if left <= 0:
                break
            share = min(max(left / (len(candidates) - index), LEAST_SHARE_SECONDS), left)
            try:
                return await self.call(address.node_id, request, timeout=share, max_version=max_version)
            except (ConnectionFailed, TimedOut) as error:
                failures.append(error)
            self._check_open()
        raise _no_broker(failures, candidates)

    async def connection(self, node_id: int, lane: str = GENERAL) -> BrokerConnection:
        """The connection to a broker, made if need be. Waits while the broker is left alone."""
        key = (node_id, lane)
        connection = self._pool.get(key)
        if connection is not None and not connection.closed:
            return connection
        self._check_open()
        task = self._opening.get(key)
        if task is None:
            address = self._address(node_id)
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

    async def retrying(self, what: str, timeout: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, pausing longer each time, for `timeout` seconds.

        Errors that no retry can heal are raised as they are; the others end up as the cause of TimedOut.
        """
        loop = asyncio.get_running_loop()
        deadline = min(loop.time() + timeout, _deadline.get())
        token = _deadline.set(deadline)
        failures = 0
        last: ClientError | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline + DEADLINE_GRACE_SECONDS):
                        return await attempt()
                except TimeoutError:
                    cause = last or self._refresher.last_error or self._silence()
                    raise TimedOut(what, timeout, cause=cause) from last
                except ClientError as error:
                    if not error.retriable:
                        raise
                    last = error
                failures += 1
                self.counters.retries += 1
                pause = self._retry_backoff.pause(failures, random.random())
                if loop.time() + pause >= deadline:
                    raise TimedOut(what, timeout, cause=last) from last
                await asyncio.sleep(pause)
                self._check_open()
        finally:
            _deadline.reset(token)

    # ---- coordinators

    async def coordinator(self, group: str, timeout: float) -> int:
        """The node id of a group's coordinator."""
        known = self._coordinators.get(group)
        if known is not None:
            return known
        return await self.retrying(
            f"finding the coordinator of group {group!r}", timeout, lambda: self._find_coordinator(group)
        )

    def forget_coordinator(self, group: str) -> None:
        """Look for the coordinator anew next time: it moved, or cannot be reached."""
        self._coordinators.pop(group, None)

    async def _find_coordinator(self, group: str) -> int:
        def build(version: int) -> Message:
            if version >= _FIRST_BATCHED_FIND_COORDINATOR:
                return FindCoordinatorRequest(coordinator_keys=[group])
            return FindCoordinatorRequest(key=group)

        found = await self.call_any(Versioned(FindCoordinatorRequest, build))
        answer = found.coordinators[0] if found.coordinators else found
        if answer.error_code != ErrorCode.NONE:
            raise BrokerError.of(
                answer.error_code, f"finding the coordinator of group {group!r}", answer.error_message
            )
        if answer.node_id not in self.metadata.brokers:
            self.metadata.learn_broker(BrokerAddress(answer.node_id, answer.host, answer.port))
        self._coordinators[group] = answer.node_id
        return int(answer.node_id)

    # ---- metadata

    def want_topics(self, names: Iterable[str]) -> None:
        """Ask for these topics, now if they are new and whenever metadata is refreshed."""
        self._refresher.want(names)

    def want_all_topics(self, wanted: bool = True) -> None:
        self._refresher.want_all(wanted)

    def drop_topics(self, names: Iterable[str]) -> None:
        """Nobody needs these topics any more."""
        self._refresher.drop(names)

    def request_refresh(self) -> asyncio.Future[None]:
        """Ask soon; the future is done after the next answer, or fails when no retry can bring one."""
        return self._refresher.request()

    def on_metadata(self, callback: Callable[[MetadataChange], None]) -> None:
        """Call `callback` after every refresh; what it is given is false when nothing changed."""
        self._refresher.on_change(callback)

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        """A topic, once it is known and all its partitions have leaders."""
        known = self.metadata.topics.get(name)
        if known is not None and known.has_all_leaders:
            return known
        self.want_topics([name])
        return await self.retrying(f"waiting for topic {name!r}", timeout, lambda: self._look_up(name))

    async def _look_up(self, name: str) -> TopicMetadata:
        await self.request_refresh()
        known = self.metadata.topics.get(name)
        what = f"looking for topic {name!r}"
        if known is None:
            raise BrokerError.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        if known.has_all_leaders:
            return known
        if not known.exists:
            raise BrokerError.of(known.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        without = [each.index for each in known.partitions if each.leader < 0]
        raise BrokerError.of(
            ErrorCode.LEADER_NOT_AVAILABLE, what, f"partitions {without} have no leader right now"
        )

    async def _ask_metadata(self, request: MetadataRequest) -> MetadataResponse:
        response: MetadataResponse = await self.call_any(request)
        self.counters.metadata_refreshes += 1
        return response

    def _brokers_changed(self, change: MetadataChange) -> None:
        """Leave brokers that moved or are gone; what is under way there is still answered."""
        if not change.brokers:
            return
        for key, connection in list(self._pool.items()):
            now_at = self.metadata.brokers.get(key[0])
            if key[0] >= 0 and (now_at is None or now_at.endpoint != connection.address.endpoint):
                self._part_with(key).retire()

    # ---- connections

    async def _ready(
        self, node_id: int, lane: str, api_key: int, seconds: float, deadline: float
    ) -> BrokerConnection:
        """A connection that takes the request now, by `deadline`."""
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(node_id, lane)
                await connection.drained()
                return connection
        except TimeoutError:
            address = self.metadata.brokers.get(node_id) or self._bootstrap_by_id(node_id)
            cause = ConnectionFailed("the connection is not made, or takes nothing more")
            what = f"{ApiKey(api_key).title} to {address or f'broker {node_id}'}"
            raise TimedOut(what, seconds, cause=cause) from None

    async def _open(self, address: BrokerAddress, lane: str) -> BrokerConnection:
        loop = asyncio.get_running_loop()
        health = self._health.setdefault(address.endpoint, Health())
        wait = health.wait(loop.time())
        if wait:
            await asyncio.sleep(wait)
        try:
            connection = await open_connection(address, self._settings, self.counters)
        except Exception as error:
            health.failed(loop.time(), self._reconnect_backoff, random.random())
            self._logger.debug("no connection to %s: %s", address, error)
            raise
        health.succeeded()
        self._pool[address.node_id, lane] = connection
        self._watch_idle()
        return connection

    def _opened(self, key: tuple[int, str], task: asyncio.Task[BrokerConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; it is no surprise when nobody does

    def _address(self, node_id: int) -> BrokerAddress:
        address = self.metadata.brokers.get(node_id) or self._bootstrap_by_id(node_id)
        if address is None:
            self.request_refresh()
            raise ConnectionFailed(
                f"broker {node_id} is not in the cluster as far as is known",
                advice="Look whether the broker runs",
            )
        return address

    def _bootstrap_by_id(self, node_id: int) -> BrokerAddress | None:
        index = -1 - node_id
        return self._bootstrap[index] if 0 <= index < len(self._bootstrap) else None

    def _candidates(self, now: float) -> list[BrokerAddress]:
        """Whom to ask when anybody will do, the likeliest to answer first."""
        known = list(self.metadata.brokers.values())
        random.shuffle(known)

        def rank(address: BrokerAddress) -> tuple[float, ...]:
            connection = self._pool.get((address.node_id, GENERAL))
            is_connected = connection is not None and not connection.closed
            health = self._health.get(address.endpoint)
            return (
                not is_connected,
                connection.in_flight if is_connected and connection is not None else 0,
                health.wait(now) if health is not None else 0.0,
            )

        known.sort(key=rank)
        endpoints = {address.endpoint for address in known}
        return known + [each for each in self._bootstrap if each.endpoint not in endpoints]

    def _watch_idle(self) -> None:
        if self._idle_seconds > 0 and self._idle_timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle_seconds / IDLE_LOOKS, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        now = asyncio.get_running_loop().time()
        for key, connection in list(self._pool.items()):
            if connection.closed:
                del self._pool[key]
            elif not connection.in_flight and now - connection.last_used >= self._idle_seconds:
                self._logger.debug("closing the unused connection to %s", connection.address)
                self._part_with(key).close()
        if self._pool:
            self._watch_idle()

    def _silence(self) -> ClientError | None:
        """What to blame while nothing failed yet: nobody has ever answered."""
        if self.metadata.updated_at is not None:
            return None
        names = ", ".join(address.endpoint for address in self._bootstrap)
        return NoBrokerReachable(f"no broker has answered so far, of {names}")

    def _part_with(self, key: tuple[int, str]) -> BrokerConnection:
        """Take a connection out of the pool; `close` still knows it until its socket is gone."""
        connection = self._pool.pop(key)
        self._leaving.add(connection)
        connection.gone.add_done_callback(lambda _: self._leaving.discard(connection))
        return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client was closed")


def connection_settings(config: ClientConfig, ssl_context: ssl.SSLContext | None) -> ConnectionSettings:
    return ConnectionSettings(
        client_id=config.str_("client.id"),
        setup_seconds=config.seconds("socket.connection.setup.timeout.ms"),
        request_seconds=config.seconds("request.timeout.ms"),
        send_buffer_bytes=config.int_("send.buffer.bytes"),
        receive_buffer_bytes=config.int_("receive.buffer.bytes"),
        ssl_context=ssl_context,
    )


def _creates_topics(config: ClientConfig) -> bool:
    """Whether asking for a topic may create it: a producer's, a consumer's if it is told so."""
    if config.kind == "consumer":
        return config.bool_("allow.auto.create.topics")
    return config.kind == "producer"


def _no_broker(failures: list[ClientError], candidates: list[BrokerAddress]) -> ClientError:
    """What to say when nobody answered: the one reason, or that there are several."""
    lasting = [error for error in failures if not error.retriable]
    if failures and len(lasting) == len(failures):
        return lasting[0]  # no retry can help, and the first address is what the user looks at first
    causes = "; ".join(dict.fromkeys(str(error) for error in failures)) or "there was no time left"
    names = ", ".join(address.endpoint for address in candidates)
    return NoBrokerReachable(f"no broker answered, of {names}: {causes}")
