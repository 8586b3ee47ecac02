"""One client's access to the cluster: its connections to brokers, its metadata, and its groups' coordinators.

A client has one connection per broker and lane. Answers come in order on a connection, and a fetch that waits
for records must not delay a heartbeat, so these use different lanes. After a failed attempt the client pauses
before it connects to the same broker again. If no known broker answers, it tries the addresses that the user
gave again. Everything here runs on one event loop; `close` ends every task and socket.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from klamm.client.counters import ClientCounters
from klamm.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    NoBrokerReachable,
    TimedOut,
)
from klamm.client.logs import client_logger
from klamm.client.network.addresses import BrokerAddress, parse_bootstrap
from klamm.client.network.backoff import Backoff
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.metadata import MetadataCache, MetadataChange, TopicMetadata
from klamm.client.network.opening import ConnectionSettings
from klamm.client.network.pool import ConnectionPool
from klamm.client.network.refreshing import MetadataRefresher
from klamm.client.network.tokens import TokenCredentials
from klamm.config.client_config import ClientConfig
from klamm.config.rows import ConfigError
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.schema import Message
from klamm.security.sasl import SaslCredentials, sasl_credentials
from klamm.security.tls import client_ssl_context

T = TypeVar("T")

GENERAL = "general"

LEAST_SHARE_SECONDS = 1.0
"""The least time that one broker has to answer, when several are asked one after the other."""

DEADLINE_GRACE_SECONDS = 0.1
"""How much later than its requests a whole call times out: the error of the request says more."""

_FIRST_BATCHED_FIND_COORDINATOR = 4
_NEVER = float("inf")

MOST_GROUPS_AT_ONCE = 1000
"""The most groups whose coordinators one request asks for."""


class Versioned(NamedTuple):
    """A request whose fields depend on the version: its class, and a function that makes it for a version."""

    cls: type[Message]
    build: Callable[[int], Message]


class _OnlyOneGroup(Exception):
    """The broker is so old that a request can only be about one group."""


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
        self._request_seconds = config.seconds("request.timeout.ms")
        self._retry_backoff = Backoff(
            config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")
        )
        self._pool = ConnectionPool(
            connection_settings(config, ssl_context),
            self._address,
            backoff=Backoff(
                config.seconds("reconnect.backoff.ms"), config.seconds("reconnect.backoff.max.ms")
            ),
            idle_seconds=config.seconds("connections.max.idle.ms"),
            counters=self.counters,
            logger=self._logger,
        )
        self._deadlines: dict[asyncio.Task[Any] | None, float] = {}
        """The deadlines of the calls that are being retried, by task: their requests time out first, with an
        error that says more."""
        self._coordinators: dict[str, int] = {}
        self._refresher = MetadataRefresher(
            self.metadata,
            self._ask_metadata,
            backoff=self._retry_backoff,
            max_age_seconds=config.seconds("metadata.max.age.ms"),
            always_creates=config.kind == "consumer" and config.bool_("allow.auto.create.topics"),
            logger=self._logger,
        )
        self._refresher.on_change(self._brokers_changed)

    # ---- life

    async def start(self) -> None:
        """Start. Connections are made when they are needed first."""
        self._pool.check_open()
        self._refresher.start()

    async def close(self, timeout: float | None = None) -> None:
        """End all tasks and connections. Requests that were written already are still sent, if brokers take
        them within `timeout` seconds."""
        await self._refresher.close()
        await self._pool.close(timeout)

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
        """One attempt at one broker: connects if there is no connection, sends, and returns the decoded
        answer."""
        loop = asyncio.get_running_loop()
        seconds = self._request_seconds if timeout is None else timeout
        deadline = min(loop.time() + seconds, self._deadline())
        api_key = request.cls.__api_key__ if isinstance(request, Versioned) else request.__api_key__
        assert api_key is not None
        connection = self._pool.find(node_id, lane)
        if connection is None or not connection.writable:
            connection = await self._ready(node_id, lane, api_key, deadline)
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
        """The answer of any broker. Tries connected brokers first, the addresses that the user gave last.

        Tries each at most once. Only after ConnectionFailed and TimedOut does it try the next broker; other
        errors are raised at once.
        """
        loop = asyncio.get_running_loop()
        seconds = self._request_seconds if timeout is None else timeout
        deadline = min(loop.time() + seconds, self._deadline())
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
            self._pool.check_open()
        raise _no_broker(failures, candidates)

    def open_connection(self, node_id: int, lane: str = GENERAL) -> BrokerConnection | None:
        """The open connection to a broker; None if there is none."""
        return self._pool.find(node_id, lane)

    async def connection(self, node_id: int, lane: str = GENERAL) -> BrokerConnection:
        """The connection to a broker, opened if there is none. Waits for the pause after a failed attempt."""
        return await self._pool.get(node_id, lane)

    @property
    def last_error(self) -> ClientError | None:
        """Why the latest refresh of metadata failed; None if it succeeded."""
        return self._refresher.last_error

    async def retrying(self, what: str, timeout: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, with growing pauses, for `timeout` seconds.

        An error that is not retriable is raised as it is. The last retriable one is the cause of TimedOut.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = min(began + timeout, self._deadline())
        task = asyncio.current_task()
        outer = self._deadlines.get(task)
        self._deadlines[task] = deadline
        failures = 0
        last: ClientError | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline + DEADLINE_GRACE_SECONDS):
                        return await attempt()
                except ClientError as error:  # before TimeoutError, which TimedOut is as well
                    if not error.retriable:
                        raise
                    last = error
                except TimeoutError:
                    cause = last or self._refresher.last_error or self._silence(loop.time())
                    raise TimedOut(what, loop.time() - began, cause=cause) from last
                failures += 1
                self.counters.retries += 1
                pause = self._retry_backoff.pause(failures, random.random())
                if loop.time() + pause >= deadline:
                    raise TimedOut(what, loop.time() - began, cause=last) from last
                await asyncio.sleep(pause)
                self._pool.check_open()
        finally:
            if outer is None:
                del self._deadlines[task]
            else:
                self._deadlines[task] = outer

    def _deadline(self) -> float:
        """The deadline of the `retrying` call that this task is in; infinite outside of one."""
        return self._deadlines.get(asyncio.current_task(), _NEVER) if self._deadlines else _NEVER

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
        """Look for the coordinator again next time, because it moved or cannot be reached."""
        self._coordinators.pop(group, None)

    async def find_coordinators(self, groups: Iterable[str]) -> dict[str, int | BrokerError]:
        """One attempt to find the coordinators of several groups, with as few requests as brokers allow."""
        found: dict[str, int | BrokerError] = {}
        missing: list[str] = []
        for group in groups:
            known = self._coordinators.get(group)
            if known is None:
                missing.append(group)
            else:
                found[group] = known
        for begin in range(0, len(missing), MOST_GROUPS_AT_ONCE):
            found |= await self._ask_coordinators(missing[begin : begin + MOST_GROUPS_AT_ONCE])
        return found

    async def _find_coordinator(self, group: str) -> int:
        found = (await self.find_coordinators([group]))[group]
        if isinstance(found, BrokerError):
            raise found
        return found

    async def _ask_coordinators(self, groups: list[str]) -> dict[str, int | BrokerError]:
        def build(version: int) -> Message:
            if version >= _FIRST_BATCHED_FIND_COORDINATOR:
                return FindCoordinatorRequest(coordinator_keys=groups)
            if len(groups) > 1:
                raise _OnlyOneGroup
            return FindCoordinatorRequest(key=groups[0])

        try:
            response = await self.call_any(Versioned(FindCoordinatorRequest, build))
        except _OnlyOneGroup:
            each = [await self._ask_coordinators([group]) for group in groups]
            return {group: one for answer in each for group, one in answer.items()}
        answers = {one.key: one for one in response.coordinators} or {groups[0]: response}
        found: dict[str, int | BrokerError] = {}
        for group in groups:
            what = f"finding the coordinator of group {group!r}"
            answer = answers.get(group)
            if answer is None:
                found[group] = BrokerError.of(
                    ErrorCode.UNKNOWN_SERVER_ERROR, what, "the answer does not name it"
                )
            elif answer.error_code != ErrorCode.NONE:
                found[group] = BrokerError.of(answer.error_code, what, answer.error_message)
            else:
                if answer.node_id not in self.metadata.brokers:
                    self.metadata.learn_broker(BrokerAddress(answer.node_id, answer.host, answer.port))
                found[group] = self._coordinators[group] = int(answer.node_id)
        return found

    # ---- metadata

    def want_topics(self, names: Iterable[str]) -> None:
        """Include these topics in every refresh of metadata; new ones are asked for at once."""
        self._refresher.want(names)

    def want_all_topics(self, wanted: bool = True) -> None:
        self._refresher.want_all(wanted)

    @contextmanager
    def topics_of_call(self, names: Collection[str]) -> Iterator[None]:
        """Include these topics in every refresh of metadata while the block runs."""
        self._refresher.begin_call(names)
        try:
            yield
        finally:
            self._refresher.end_call(names)

    def drop_topics(self, names: Iterable[str]) -> None:
        """Leave these topics out of the refreshes of metadata."""
        self._refresher.drop(names)

    def request_refresh(self, create: Iterable[str] = ()) -> asyncio.Future[None]:
        """Refresh the metadata soon. The future ends after the next answer, or with an error that is not
        retriable.

        For a producer, brokers that create topics automatically create those of `create` that do not exist.
        """
        return self._refresher.request(create if self.config.kind == "producer" else ())

    def on_metadata(self, callback: Callable[[MetadataChange], None]) -> None:
        """Call `callback` after every refresh, with what changed; the change is false if nothing did."""
        self._refresher.on_change(callback)

    def on_metadata_failure(self, callback: Callable[[ClientError, float], None]) -> None:
        """Call `callback` after every refresh that failed, with the error and the number of seconds for which
        no refresh has succeeded."""
        self._refresher.on_failure = callback

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        """A topic, once it is known and at least one of its partitions has a leader. A producer's look-up
        creates the topic if it does not exist.

        It does not wait for all leaders: some partitions may be without one for long, while their brokers are
        down.
        """
        known = self.metadata.topics.get(name)
        if known is not None and known.has_leader:
            return known
        self.want_topics([name])
        return await self.retrying(f"waiting for topic {name!r}", timeout, lambda: self._look_up(name))

    async def _look_up(self, name: str) -> TopicMetadata:
        await self.request_refresh(create=[name])
        known = self.metadata.topics.get(name)
        what = f"looking for topic {name!r}"
        if known is None:
            raise BrokerError.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        if known.has_leader:
            return known
        if not known.exists:
            raise BrokerError.of(known.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        raise BrokerError.of(ErrorCode.LEADER_NOT_AVAILABLE, what, "no partition has a leader right now")

    async def _ask_metadata(self, request: MetadataRequest) -> MetadataResponse:
        response: MetadataResponse = await self.call_any(request)
        self.counters.metadata_refreshes += 1
        return response

    def _brokers_changed(self, change: MetadataChange) -> None:
        if change.brokers:
            self._pool.keep_only(self.metadata.brokers)

    # ---- connections

    async def _ready(self, node_id: int, lane: str, api_key: int, deadline: float) -> BrokerConnection:
        """A connection that is open and writable; raises TimedOut if there is none by `deadline`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(node_id, lane)
                await connection.drained()
                return connection
        except TimeoutError:
            address = self.metadata.brokers.get(node_id) or self._bootstrap_by_id(node_id)
            failure = None if address is None else self._pool.last_failure(address)
            cause = failure or ConnectionFailed(
                "the connection was not ready by then. Look whether a Kafka broker listens there"
            )
            what = f"{ApiKey(api_key).title} to {address or f'broker {node_id}'}"
            raise TimedOut(what, loop.time() - began, cause=cause) from None

    def _address(self, node_id: int) -> BrokerAddress:
        address = self.metadata.brokers.get(node_id) or self._bootstrap_by_id(node_id)
        if address is None:
            self.request_refresh()
            raise ConnectionFailed(
                f"broker {node_id} is not in the metadata of the cluster",
                advice="Look whether the broker runs",
            )
        return address

    def _bootstrap_by_id(self, node_id: int) -> BrokerAddress | None:
        index = -1 - node_id
        return self._bootstrap[index] if 0 <= index < len(self._bootstrap) else None

    def _candidates(self, now: float) -> list[BrokerAddress]:
        """The brokers to try for a request that any broker can answer, the likeliest to answer first."""
        known = list(self.metadata.brokers.values())
        random.shuffle(known)

        def rank(address: BrokerAddress) -> tuple[float, ...]:
            connection = self._pool.find(address.node_id, GENERAL)
            if connection is None:
                return 1, self._pool.wait(address, now)
            return 2 if connection.is_suspect else 0, connection.in_flight

        known.sort(key=rank)
        endpoints = {address.endpoint for address in known}
        return known + [each for each in self._bootstrap if each.endpoint not in endpoints]

    def _silence(self, now: float) -> ClientError | None:
        """The cause of a time-out when no request has failed: the broker that has not answered for the
        longest time, or that no broker ever answered."""
        waiting = self._pool.longest_silence(now)
        if waiting is not None:
            return ConnectionFailed(waiting)
        if self.metadata.updated_at is not None:
            return None
        names = ", ".join(address.endpoint for address in self._bootstrap)
        return NoBrokerReachable(f"no broker has answered so far, of {names}")


def connection_settings(config: ClientConfig, ssl_context: ssl.SSLContext | None) -> ConnectionSettings:
    """The settings of connections. An `ssl_context` from the user enables TLS, and replaces the ssl
    options."""
    protocol = config.str_("security.protocol")
    if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
        raise ConfigError(
            f"ssl_context={ssl_context!r} is refused: it must be an ssl.SSLContext, as "
            "ssl.create_default_context() makes one",
            key="ssl_context",
        )
    if ssl_context is not None and not protocol.endswith("SSL"):
        if config.given("security.protocol"):
            raise ConfigError(
                f"security.protocol={protocol} is refused: an ssl_context is given, so it must be SSL or "
                "SASL_SSL",
                key="security.protocol",
            )
        protocol = "SSL"
    if not protocol.endswith("SSL"):
        _check_tls_unused(config, protocol)
    return ConnectionSettings(
        client_id=config.str_("client.id"),
        setup_seconds=config.seconds("socket.connection.setup.timeout.ms"),
        request_seconds=config.seconds("request.timeout.ms"),
        send_buffer_bytes=config.int_("send.buffer.bytes"),
        receive_buffer_bytes=config.int_("receive.buffer.bytes"),
        ssl_context=(ssl_context or client_ssl_context(config)) if protocol.endswith("SSL") else None,
        credentials=_credentials(config) if protocol.startswith("SASL") else None,
    )


def _check_tls_unused(config: ClientConfig, protocol: str) -> None:
    """Raise ConfigError for ssl options without TLS: the user thinks that connections are encrypted."""
    name = next((name for name in config if name.startswith("ssl.") and config.given(name)), None)
    if name is not None:
        wanted = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
        raise ConfigError(
            f"{name} is of no use with security.protocol={protocol}: set security.protocol to {wanted} to "
            "encrypt, or leave it out",
            key=name,
        )


def _credentials(config: ClientConfig) -> SaslCredentials:
    if config.token_provider is not None:
        return TokenCredentials(config.token_provider)
    try:
        return sasl_credentials(
            config.str_("sasl.mechanism"), config.str_("sasl.username"), config.str_("sasl.password")
        )
    except ValueError as error:
        raise ConfigError(
            f"sasl.username or sasl.password is refused: {error}", key="sasl.username"
        ) from None


def _no_broker(failures: list[ClientError], candidates: list[BrokerAddress]) -> ClientError:
    """The error when no broker answered: the first failure if none is retriable, else one that names all."""
    lasting = [error for error in failures if not error.retriable]
    if failures and len(lasting) == len(failures):
        return lasting[0]  # no retry can help, and the first address is what the user looks at first
    causes = "; ".join(dict.fromkeys(str(error) for error in failures)) or "there was no time left"
    names = ", ".join(address.endpoint for address in candidates)
    return NoBrokerReachable(f"no broker answered, of {names}: {causes}")
