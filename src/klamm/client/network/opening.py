"""Opens a connection that can be used: TCP, TLS, versions, login.

All steps together take at most socket.connection.setup.timeout.ms. Every failure is a typed error that names
the broker and the step.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from klamm.client.counters import ClientCounters
from klamm.client.errors import BrokerError, ConnectionFailed, TlsFailed
from klamm.client.network.addresses import BrokerAddress
from klamm.client.network.authentication import authenticate, keep_authenticated
from klamm.client.network.connection import BrokerConnection
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import API_VERSIONS, ApiKey
from klamm.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.security.sasl import SaslCredentials
from klamm.security.tls import explain_tls_error, may_pass

SOFTWARE_NAME = "klamm"
SOFTWARE_VERSION = "0.1.0"
"""The client's name and version in ApiVersions requests."""

TLS_GOODBYE_SECONDS = 0.25
"""How long a closing TLS connection waits for the broker's close_notify, which has no further use."""

_NEWEST_API_VERSIONS = API_VERSIONS[ApiKey.API_VERSIONS].max_version


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of all connections of one client."""

    client_id: str
    setup_seconds: float
    request_seconds: float
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    ssl_context: ssl.SSLContext | None = None
    credentials: SaslCredentials | None = None


class _Step:
    """The current step, for the error if it takes too long."""

    def __init__(self) -> None:
        self.name = "accept the connection"


async def open_connection(
    address: BrokerAddress, settings: ConnectionSettings, counters: ClientCounters
) -> BrokerConnection:
    """A connection that is ready for requests."""
    step = _Step()
    connection = BrokerConnection(address, settings.client_id, settings.request_seconds, counters)
    try:
        async with asyncio.timeout(settings.setup_seconds):
            await _dial(connection, settings, step)
            step.name = "answer ApiVersions"
            await _negotiate(connection, settings.setup_seconds)
            if settings.credentials is not None:
                step.name = "finish the login"
                await _log_in(connection, settings, settings.credentials)
    except BaseException as error:
        connection.abort()
        counters.connections_failed += 1
        if isinstance(error, TimeoutError):  # as TimedOut is
            raise ConnectionFailed(
                f"{address} did not {step.name} within {settings.setup_seconds:g} s",
                advice="Look whether the broker runs, and whether the address is its Kafka listener",
            ) from None
        raise
    connection.allow_large_answers()
    counters.connections_opened += 1
    return connection


# ---- the socket


async def _dial(connection: BrokerConnection, settings: ConnectionSettings, step: _Step) -> None:
    """Connect to the first of the host's addresses that accepts the connection."""
    address = connection.address
    loop = asyncio.get_running_loop()
    found = await _resolve(address)
    problem: OSError | None = None
    share = settings.setup_seconds / len(found)
    for family, target in found:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            _prepare(sock, settings)
            async with asyncio.timeout(share):
                await loop.sock_connect(sock, target)
        except OSError as error:  # TimeoutError is one
            sock.close()
            problem = error
            continue
        except BaseException:
            sock.close()
            raise
        await _adopt(connection, sock, settings, step)
        return
    if isinstance(problem, TimeoutError) and not problem.errno:
        raise problem
    raise ConnectionFailed(
        f"no connection to {address}: {_reason(problem)}",
        advice="Look whether the broker runs and the address is right",
    )


async def _resolve(address: BrokerAddress) -> list[tuple[int, tuple[Any, ...]]]:
    """The families and socket addresses of a host. A host that is an IP address is not looked up."""
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(address.host)
        family = socket.AF_INET if number.version == 4 else socket.AF_INET6
        return [(family, (address.host, address.port))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise ConnectionFailed(
            f"the name {address.host} of {address} cannot be resolved: {error.strerror or error}",
            advice="Look at the name, or at advertised.listeners of the broker",
        ) from None
    return [(each[0], each[4]) for each in found]


def _prepare(sock: socket.socket, settings: ConnectionSettings) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)


async def _adopt(
    connection: BrokerConnection, sock: socket.socket, settings: ConnectionSettings, step: _Step
) -> None:
    """Give the connected socket to the loop, and do the TLS handshake if TLS is on."""
    loop = asyncio.get_running_loop()
    try:
        if settings.ssl_context is None:
            await loop.create_connection(lambda: connection, sock=sock)
        else:
            step.name = "finish the TLS handshake"
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=settings.ssl_context,
                server_hostname=connection.address.host,
                ssl_handshake_timeout=settings.setup_seconds + TLS_GOODBYE_SECONDS,
                ssl_shutdown_timeout=TLS_GOODBYE_SECONDS,
            )
    except (ssl.SSLError, ConnectionError) as error:
        sock.close()
        problem, advice = explain_tls_error(error)
        failure = TlsFailed(f"no TLS with {connection.address}: {problem}", advice=advice)
        failure.retriable = may_pass(error)
        raise failure from None
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise


def _reason(problem: OSError | None) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "it was refused"
    return str(problem.strerror or problem) if problem is not None else "the host has no address"


# ---- login


async def _log_in(
    connection: BrokerConnection, settings: ConnectionSettings, credentials: SaslCredentials
) -> None:
    lifetime = await authenticate(connection, credentials, settings.setup_seconds)
    if lifetime > 0:
        connection.renewal = asyncio.get_running_loop().create_task(
            keep_authenticated(connection, credentials, lifetime, settings.request_seconds),
            name=f"klamm-login-{connection.address.endpoint}",
        )


# ---- versions


async def _negotiate(connection: BrokerConnection, timeout: float) -> None:
    """Ask which requests the broker supports. A broker that does not know our version of ApiVersions answers
    which it knows; then it is asked again."""
    response = await _ask_versions(connection, _NEWEST_API_VERSIONS, timeout)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        known = [each.max_version for each in response.api_keys if each.api_key == ApiKey.API_VERSIONS]
        version = min(_NEWEST_API_VERSIONS, known[0]) if known else 0
        response = await _ask_versions(connection, version, timeout)
    if response.error_code != ErrorCode.NONE:
        raise BrokerError.of(response.error_code, f"ApiVersions to {connection.address}")
    connection.learn_versions(response)


async def _ask_versions(connection: BrokerConnection, version: int, timeout: float) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
    response: ApiVersionsResponse = await connection.send(request, version, timeout)
    return response
