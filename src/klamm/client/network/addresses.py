"""The addresses of brokers: those that the user gave, and those in the cluster's metadata.

The node id of an address that the user gave is not known yet; it gets a negative one, so that it can be a key
of the connection pool like the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from klamm.config.rows import ConfigError

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<name>[^\s:/\[\],@]+)):(?P<port>\d{1,5})")


class BrokerAddress(NamedTuple):
    """One broker. `str()` of it is the broker's name in errors and logs."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.node_id} at {self.endpoint}" if self.node_id >= 0 else self.endpoint


def parse_bootstrap(servers: Sequence[str]) -> tuple[BrokerAddress, ...]:
    """The addresses of bootstrap.servers, numbered -1, -2, … Raises ConfigError for one that is not valid."""
    found: dict[str, BrokerAddress] = {}
    for text in servers:
        match = _ADDRESS.fullmatch(text.strip())
        port = int(match["port"]) if match else 0
        if match is None or not 0 < port <= 65_535:
            raise ConfigError(
                f"bootstrap.servers={text!r} is refused: an address reads host:port, such as "
                "localhost:9092 or [::1]:9092",
                key="bootstrap.servers",
            )
        address = BrokerAddress(-1 - len(found), match["v6"] or match["name"], port)
        found.setdefault(address.endpoint, address)
    return tuple(found.values())
