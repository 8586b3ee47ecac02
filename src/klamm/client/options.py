"""The keyword arguments that every client takes: one for each row of CLIENT_KEYS, dots as underscores.

They are written out so that type checkers and editors know them; a test compares them with the rows.
docs/CLIENT_CONFIGURATION.md describes each. `sasl_oauth_token_provider` has no row, because it is a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

from klamm.security.oauth import TokenProvider


class ClientOptions(TypedDict, total=False):
    """Settings of producers, consumers and admins."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    client_rack: str
    connections_max_idle_ms: int
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    receive_buffer_bytes: int
    reconnect_backoff_max_ms: int
    reconnect_backoff_ms: int
    request_timeout_ms: int
    retry_backoff_max_ms: int
    retry_backoff_ms: int
    sasl_mechanism: str
    sasl_oauth_token_provider: TokenProvider
    sasl_password: str
    sasl_username: str
    security_protocol: str
    send_buffer_bytes: int
    socket_connection_setup_timeout_ms: int
    ssl_ca_location: str | PathLike[str]
    ssl_certificate_location: str | PathLike[str]
    ssl_endpoint_identification_algorithm: str
    ssl_key_location: str | PathLike[str]
    ssl_key_password: str
