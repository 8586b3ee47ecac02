"""A broker behind the fault proxy: clients come through the proxy, whoever checks goes straight to it.

The broker has two listeners. It advertises the proxy's address on the one and its own on the other, so
nothing on the way has to be rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.client.faults.proxy import FaultProxy
from tests.peers.apache_kafka import free_ports


class Stand(Protocol):
    """A broker that can be brought down and up again."""

    proxy: FaultProxy
    direct: str

    def restart(self) -> None: ...

    def close(self) -> None: ...


def listeners_behind(proxy: FaultProxy) -> tuple[dict[str, str], str, str]:
    """Settings for a broker behind the proxy, the address for those who check, and where the proxy goes."""
    direct, proxied = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "listeners": f"DIRECT://{direct},PROXIED://{proxied}",
        "advertised.listeners": f"DIRECT://{direct},PROXIED://{proxy.bootstrap}",
        "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT",
        "inter.broker.listener.name": "DIRECT",
    }
    return settings, direct, proxied


class InProcessStand:
    """klamm.testing.Broker behind a proxy: starts in a moment, and restarts as an operator would do it."""

    def __init__(self, proxy: FaultProxy, settings: Mapping[str, str | int | bool] | None = None) -> None:
        self.proxy = proxy
        listeners, self.direct, proxy.target = listeners_behind(proxy)
        self._broker = Broker({**listeners, **(settings or {})})
        self._broker.start()

    def restart(self) -> None:
        self._broker.stop()
        self._broker.start()

    def close(self) -> None:
        self._broker.__exit__()


class ProcessStand:
    """`klamm up` behind a proxy: it can be killed and stopped from outside."""

    def __init__(self, proxy: FaultProxy, directory: Path) -> None:
        self.proxy = proxy
        listeners, self.direct, proxy.target = listeners_behind(proxy)
        self.process = BrokerProcess(directory / "data", directory / "broker.log", listeners)
        self.process.start()

    def restart(self) -> None:
        self.process.kill()
        self.process.start()

    def close(self) -> None:
        if self.process.is_running:
            self.process.check_log()
            self.process.kill()


def connect(stand: Stand) -> WireConnection:
    """Past the proxy."""
    return WireConnection(stand.direct, client_id="checker")
