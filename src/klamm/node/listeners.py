"""The addresses that this broker listens on: bound at the start, and changed while the broker runs.

`listeners` can be changed for one broker at run time. A broker that is asked to change its own first tries
whether the new addresses can be opened, and refuses the change if not. Addresses that are gone are closed
before new ones are opened, since a listener may move to another host on the same port. If an address cannot
be opened all the same, the broker logs an error, and the listener keeps the address that it had. The listener
for brokers stays as it is until a restart: the other brokers are connected to it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from klamm.config.listeners import Listener
from klamm.server.listener import CannotListen, Server, bound_socket

logger = logging.getLogger("klamm.node")

CLOSING_AFTER_S = 1.0
"""How long the connections of a closed listener go on: the request that closed it is answered on one."""


class _Closed(NamedTuple):
    listener: Listener
    port: int


class Listeners:
    def __init__(self, server: Server, for_brokers: str | None) -> None:
        """`for_brokers` is the name of the listener for brokers; None if the broker is alone."""
        self._server = server
        self._for_brokers = for_brokers
        self._open: dict[str, tuple[Listener, socket.socket]] = {}
        self._is_accepting = False
        """False until the broker serves clients: what is opened before that is only bound."""

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return tuple(listener for listener, _ in self._open.values())

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener, by name."""
        return {name: sock.getsockname()[1] for name, (_, sock) in self._open.items()}

    def bind(self, listeners: Iterable[Listener]) -> None:
        """Bind all; raises CannotListen."""
        for listener in listeners:
            self._bind(listener)

    def accept_brokers(self) -> None:
        """From here on other brokers can connect."""
        assert self._for_brokers is not None, "a broker that is alone has no listener for brokers"
        self._server.start_accepting(self._open[self._for_brokers][1], self._for_brokers)

    def accept_clients(self) -> None:
        self._is_accepting = True
        for name, (_, sock) in self._open.items():
            if name != self._for_brokers:
                self._server.start_accepting(sock, name)

    def turn_clients_away(self) -> None:
        """Serve no client until `welcome_clients`. Brokers are served."""
        for name in self._open:
            if name != self._for_brokers:
                self._server.turn_away(name)

    def welcome_clients(self) -> None:
        for name in self._open:
            self._server.welcome(name)

    async def check(self, wanted: Iterable[Listener]) -> None:
        """Raise CannotListen if an address that is not open yet cannot be opened. Changes nothing."""
        by_name = self._for_clients(wanted)
        own_ports = {self.ports[name] for name in self._leaving(by_name)}
        for name, listener in by_name.items():
            if name not in self._open or self._open[name][0] != listener:
                port = 0 if listener.port in own_ports else listener.port
                # In a thread, since the name of a host is looked up.
                sock = await asyncio.to_thread(bound_socket, listener.host, port)
                sock.close()

    def follow(self, wanted: Iterable[Listener]) -> bool:
        """Listen on these addresses from here on. True if an address was opened or closed."""
        by_name = self._for_clients(wanted)
        closed = {name: self._close(name) for name in self._leaving(by_name)}
        opened = [each for each in by_name.values() if each.name not in self._open]
        for each in opened:
            self._try_open(each, closed.get(each.name))
        gone = closed.keys() - self._open.keys()
        if gone:
            loop = asyncio.get_running_loop()
            loop.call_later(CLOSING_AFTER_S, self._close_connections_of, gone)
        return bool(closed or opened)

    def _for_clients(self, listeners: Iterable[Listener]) -> dict[str, Listener]:
        return {each.name: each for each in listeners if each.name != self._for_brokers}

    def _leaving(self, wanted: Mapping[str, Listener]) -> list[str]:
        """The listeners whose address is not wanted any more."""
        return [
            name
            for name, (listener, _) in self._open.items()
            if name != self._for_brokers and wanted.get(name) != listener
        ]

    def _try_open(self, listener: Listener, before: _Closed | None) -> None:
        try:
            self._bind(listener)
        except CannotListen as error:
            logger.error("listeners was changed, but %s is not served: %s", listener, error)
            if before is None:
                return
            # On the port that it had: clients know it, and the listener may have been given any free one.
            listener = before.listener
            self._bind(listener, before.port)
        if self._is_accepting:
            self._server.start_accepting(self._open[listener.name][1], listener.name)
        logger.info("the broker listens on %s", listener)

    def _bind(self, listener: Listener, port: int | None = None) -> None:
        sock = self._server.bind(listener.host, listener.port if port is None else port)
        self._open[listener.name] = (listener, sock)

    def _close(self, name: str) -> _Closed:
        listener, sock = self._open.pop(name)
        port = sock.getsockname()[1]
        self._server.stop_listening(sock)
        logger.info("%s is closed: the broker no longer listens there", listener)
        return _Closed(listener, port)

    def _close_connections_of(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._open:  # it may have been opened again meanwhile
                self._server.close_connections_of(name)
