"""Parses and checks `listeners`, `advertised.listeners` and `listener.security.protocol.map` together.

A listener has a name and an address to bind. The broker tells clients that connected through a listener the
advertised address with the same name. The map from listener names to security protocols is as in Kafka; only
PLAINTEXT is served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from klamm.config.rows import ConfigError

_ADDRESS = re.compile(r"([^:/]+)://(\[[0-9a-fA-F:.%]*\]|[^:\[\]/]*):(-?\d+)")
_WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})
BROKERS = "BROKERS"
"""The name of the listener for brokers that a broker of a cluster opens by itself."""
CHANGEABLE_KEYS = frozenset({"listeners", "listener.security.protocol.map"})
"""The keys of this file that can be changed for a broker that runs."""
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Listener(NamedTuple):
    """One `NAME://host:port`; the host of an IPv6 address is without its brackets."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARD_HOSTS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_http_listener(key: str, address: str) -> Listener:
    """Where pages are served over HTTP, from host:port."""
    match = _ADDRESS.fullmatch(f"HTTP://{address}")
    port = int(match[3]) if match else -1
    if match is None or not match[2] or not 0 <= port <= 65_535:
        raise ConfigError(
            f"{key}={address!r} is refused: it must read host:port, such as 0.0.0.0:9404", key=key
        )
    return Listener("HTTP", match[2].strip("[]"), port)


def parse_listeners(key: str, addresses: tuple[str, ...]) -> tuple[Listener, ...]:
    """The listeners in `addresses`. Raises ConfigError if two have the same name or the same host and
    port."""
    listeners: list[Listener] = []
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        port = int(match[3]) if match else -1
        if match is None or not 0 <= port <= 65_535:
            raise ConfigError(
                f"{key}={address!r} is refused: it must read NAME://host:port with a port from 0 to 65535",
                key=key,
            )
        listener = Listener(match[1].upper(), match[2].strip("[]"), port)
        if any(listener.name == other.name for other in listeners):
            raise ConfigError(
                f"{key}={address!r} is refused: another listener is named {listener.name} too", key=key
            )
        if key == "listeners" and port and any((listener.host, port) == other[1:] for other in listeners):
            raise ConfigError(
                f"{key}={address!r} is refused: another listener has the same host and port", key=key
            )
        listeners.append(listener)
    return tuple(listeners)


def check_listener_of_brokers_stays(
    before: tuple[Listener, ...], after: tuple[Listener, ...], name: str
) -> None:
    """Raise ConfigError if a change at run time moves the listener `name`, which other brokers use."""
    kept = [each for each in before if each.name == name]
    if kept != [each for each in after if each.name == name]:
        raise ConfigError(
            f"listeners is refused: {kept[0]} is for brokers, and its address cannot be changed while the "
            "broker runs; leave it as it is, or set it where the broker is started, and restart the broker",
            key="listeners",
        )


def add_listener_for_brokers(
    listeners: tuple[Listener, ...], advertised: tuple[Listener, ...] | None
) -> tuple[tuple[Listener, ...], tuple[Listener, ...] | None]:
    """Both with a listener for brokers only, beside the first listener and on a free port."""
    first, *_ = listeners
    told = next((each for each in advertised or () if each.name == first.name), first)
    return (
        (*listeners, Listener(BROKERS, first.host, 0)),
        None if advertised is None else (*advertised, Listener(BROKERS, told.host, 0)),
    )


def check_listener_of_brokers(listeners: tuple[Listener, ...], name: str) -> None:
    """Raise ConfigError unless `name` is a listener that clients do not use by accident."""
    others = [each for each in listeners if each.name != name]
    if len(others) == len(listeners):
        problem = f"no listener is named {name}"
    elif not others:
        problem = "it is the only listener, and clients must have one of their own: add a listener for them"
    else:
        return
    raise ConfigError(
        f"inter.broker.listener.name={name!r} is refused: {problem}; or leave the key out, and the "
        "broker opens a listener for brokers by itself",
        key="inter.broker.listener.name",
    )


def check_listeners(
    listeners: tuple[Listener, ...], advertised: tuple[Listener, ...] | None, protocol_map: str
) -> None:
    """Raise ConfigError if a broker cannot serve a listener or clients could not connect to it."""
    if not listeners:
        raise ConfigError("listeners is refused: it must name at least one NAME://host:port", key="listeners")
    protocol_of = {BROKERS: "PLAINTEXT", **_parse_protocol_map(protocol_map)}
    for listener in listeners:
        protocol = protocol_of.get(listener.name)
        if protocol is None:
            raise ConfigError(
                f"listeners={str(listener)!r} is refused: listener.security.protocol.map has no protocol "
                f"for the listener name {listener.name}",
                key="listeners",
            )
        if protocol != "PLAINTEXT":
            raise ConfigError(
                f"listeners={str(listener)!r} is refused: {protocol} is not served yet, only PLAINTEXT; give "
                "the listener PLAINTEXT, and let only a network that you trust reach the broker",
                key="listeners",
            )
    advertised_names = {each.name for each in advertised or ()}
    for listener in listeners:
        if listener.is_wildcard and listener.name not in advertised_names:
            raise ConfigError(
                f"listeners={str(listener)!r} listens on every interface, so set advertised.listeners to the "
                f"address that clients connect to, such as {listener.name}://my-host:{listener.port or 9092}",
                key="advertised.listeners",
            )
    known_names = {each.name for each in listeners}
    for each in advertised or ():
        if each.name not in known_names:
            problem = f"no listener is named {each.name}"
        elif each.is_wildcard:
            problem = "clients cannot connect to a wildcard address; name a host"
        else:
            continue
        raise ConfigError(
            f"advertised.listeners={str(each)!r} is refused: {problem}", key="advertised.listeners"
        )


def _parse_protocol_map(text: str) -> dict[str, str]:
    protocol_of: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = (part.strip() for part in entry.partition(":"))
        if not name or not separator or protocol.upper() not in _PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map={entry!r} is refused: it must read NAME:PROTOCOL, "
                f"with one of {', '.join(_PROTOCOLS)}",
                key="listener.security.protocol.map",
            )
        protocol_of[name.upper()] = protocol.upper()
    return protocol_of


def advertised_addresses(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...] | None,
    bound_ports: Mapping[str, int],
) -> dict[str, Listener]:
    """The address that clients of each listener are told, by listener name. Port 0 becomes the bound port."""
    addresses: dict[str, Listener] = {each.name: each for each in listeners}
    addresses.update((each.name, each) for each in advertised or () if each.name in addresses)
    return {
        name: each._replace(port=each.port or bound_ports.get(name, 0)) for name, each in addresses.items()
    }
