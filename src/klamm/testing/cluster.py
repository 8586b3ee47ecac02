"""Several real brokers as one cluster, for a test: in the test's process, or each in a process of its own.

    with klamm.testing.Cluster(brokers=3) as cluster:
        producer = klamm.Producer(cluster.bootstrap, acks="all")
        cluster.kill(1)          # as kill -9 does
        ...
        cluster.restart(1)
        cluster.pause(2)         # as SIGSTOP does, until cluster.resume(2)
        cluster.partition(2, 3)  # these two cannot hear each other, until cluster.heal()

Brokers have the ids 1, 2, 3, … and keep their ports and their data when they are restarted. They find one
another through an SQLite file in the cluster's directory, or through `coordination`: the address of a store,
such as a ZooKeeper's, or an address of it for each broker. Brokers reach each other through proxies
(`links.py`), which `partition` cuts. What brokers in processes of their own print is kept beside their data:
`broker-1.log`, and so on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from klamm.testing.broker import START_TIMEOUT_S, STOP_TIMEOUT_S, Broker, as_text
from klamm.testing.links import Links

T = TypeVar("T")

CLUSTER_DEFAULTS: Mapping[str, str] = {
    # A broker that is paused or cut off is taken for dead soon: tests wait for it.
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
    "default.replication.factor": "3",
    "controlled.shutdown.enable": "true",
}

KEPT_LINES = 200
"""Lines of a broker's output that are kept for the error if it does not start."""


class Cluster:
    """A cluster of `brokers`. `config` has Kafka's key names and holds for all brokers. `racks` has the rack
    of each broker."""

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, str | int | float | bool] | None = None,
        *,
        as_processes: bool = False,
        data_dir: Path | str | None = None,
        coordination: str | Mapping[int, str] | None = None,
        racks: Sequence[str] | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster needs at least one broker, not {brokers}")
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks are named for {brokers} brokers")
        self._owns_data_dir = data_dir is None
        self.data_dir = (
            Path(tempfile.mkdtemp(prefix="klamm-cluster-")) if data_dir is None else Path(data_dir)
        )
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._coordination = coordination or f"sqlite://{self.data_dir / 'klamm-metadata.sqlite'}"
        self._config = {
            **CLUSTER_DEFAULTS,
            "default.replication.factor": str(min(brokers, 3)),
            "offsets.topic.replication.factor": str(min(brokers, 3)),
            **{name: as_text(value) for name, value in (config or {}).items()},
        }
        self._racks = racks
        self._links = Links()
        kind = _BrokerInProcess if as_processes else _BrokerInThread
        ports = _free_ports(2 * brokers)
        self._members: dict[int, _Member] = {
            broker_id: kind(self._settings(broker_id, ports.pop(), ports.pop()))
            for broker_id in range(1, brokers + 1)
        }
        self._running: set[int] = set()
        self._paused: set[int] = set()

    def _settings(self, broker_id: int, port: int, port_for_brokers: int) -> dict[str, str]:
        proxy = self._links.open(broker_id, "127.0.0.1", port_for_brokers)
        return {
            "node.id": str(broker_id),
            "log.dirs": str(self.data_dir / f"broker-{broker_id}"),
            "klamm.coordination.url": (
                self._coordination if isinstance(self._coordination, str) else self._coordination[broker_id]
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{port},BROKERS://127.0.0.1:{port_for_brokers}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},BROKERS://127.0.0.1:{proxy}",
            "inter.broker.listener.name": "BROKERS",
            **({} if self._racks is None else {"broker.rack": self._racks[broker_id - 1]}),
            **self._config,
        }

    # ---- life

    def start(self) -> Cluster:
        """Start all brokers; they serve when this returns."""
        together(
            self.start_broker, [broker_id for broker_id in self._members if broker_id not in self._running]
        )
        return self

    def stop(self) -> None:
        """Stop all brokers cleanly, one after the other. The data stays, so a later `start` serves it."""
        self.heal()
        for broker_id in sorted(self._paused):
            self.resume(broker_id)
        for broker_id in sorted(self._running):
            self.stop_broker(broker_id)

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self._clean_up()
            raise

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as stack:
            stack.callback(self._clean_up)
            if exception[0] is None:
                self.stop()

    def _clean_up(self) -> None:
        for broker_id in sorted(self._running):
            self.kill(broker_id)
        self._links.close()
        if self._owns_data_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    # ---- what a test asks

    @property
    def ids(self) -> list[int]:
        """The ids of all brokers, also of those that are down."""
        return list(self._members)

    @property
    def running(self) -> list[int]:
        return sorted(self._running)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, to give to a client."""
        return ",".join(self.address(broker_id) for broker_id in self._members)

    def address(self, broker_id: int) -> str:
        """The address of one broker: "127.0.0.1:port"."""
        return self._member(broker_id).address

    def broker(self, broker_id: int) -> Broker:
        """A broker of this process, for tests of its internals."""
        member = self._member(broker_id)
        assert isinstance(member, _BrokerInThread), "the brokers are processes of their own"
        return member.broker

    def _member(self, broker_id: int) -> _Member:
        if broker_id not in self._members:
            raise ValueError(f"there is no broker {broker_id}: the cluster has {self.ids}")
        return self._members[broker_id]

    # ---- what a test does to it

    def start_broker(self, broker_id: int) -> None:
        self._member(broker_id).start()
        self._running.add(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly: it hands over its leaders first. One that is paused is resumed for it."""
        if broker_id in self._paused:
            self.resume(broker_id)
        self._running.discard(broker_id)
        self._member(broker_id).stop()

    def kill(self, broker_id: int) -> None:
        """End a broker at once, as kill -9 does: nothing is handed over, flushed or closed."""
        member = self._member(broker_id)
        self._running.discard(broker_id)
        self._paused.discard(broker_id)
        member.kill()

    def restart(self, broker_id: int) -> None:
        """Stop a broker cleanly if it runs, and start it."""
        if broker_id in self._running:
            self.stop_broker(broker_id)
        self.start_broker(broker_id)

    def pause(self, broker_id: int) -> None:
        """Stop a broker where it is, as SIGSTOP does, until `resume`: the others take it for dead."""
        self._member(broker_id).pause()
        self._paused.add(broker_id)

    def resume(self, broker_id: int) -> None:
        """Let a paused broker go on, as SIGCONT does: it finds out that others lead, and follows them."""
        self._paused.discard(broker_id)
        self._member(broker_id).resume()

    def partition(self, first: int, second: int) -> None:
        """Let nothing pass between two brokers, in either direction."""
        self.cut(first, second)
        self.cut(second, first)

    def cut(self, sender: int, receiver: int) -> None:
        """Let nothing pass from one broker to another. The other direction stays open."""
        self._member(sender), self._member(receiver)
        self._links.cut(sender, receiver)

    def reset_connections(self, first: int, second: int) -> None:
        """Break the connections between two brokers. They may connect again, unless cut."""
        self._member(first), self._member(second)
        self._links.break_connections(first, second)

    def heal(self) -> None:
        """Let all brokers hear one another again."""
        self._links.heal()


def together(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do `work` for all items at once, each in a thread; raises the first error when all are done."""
    failures: list[BaseException] = []

    def run(item: T) -> None:
        try:
            work(item)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


PORTS = range(10_000, 32_000)
"""Below those that systems give to outgoing connections: one of these could take a broker's port before the
broker is started, or while it is down."""


def _free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on. They are chosen by chance, as other processes choose, too."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


class _Member(Protocol):
    """One broker of a cluster, however it runs."""

    address: str

    def __init__(self, settings: Mapping[str, str]) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def _client_address(settings: Mapping[str, str]) -> str:
    return settings["listeners"].partition(",")[0].partition("://")[2]


class _BrokerInThread:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.address = _client_address(settings)
        self.broker = Broker(settings)

    def start(self) -> None:
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()

    def kill(self) -> None:
        self.broker.kill()

    def pause(self) -> None:
        self.broker.pause()

    def resume(self) -> None:
        self.broker.resume()


class _BrokerInProcess:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.address = _client_address(settings)
        self._arguments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self._id, self._coordination = settings["node.id"], settings["klamm.coordination.url"]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._output = Path(settings["log.dirs"] + ".log")

    def start(self) -> None:
        assert self._process is None, "the broker is running already"
        process = self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from klamm.cli.main import main; main()", "broker"),
                *("--id", self._id, "--coordination", self._coordination, "--stop-with-stdin"),
                *self._arguments,
            ],
            env={name: value for name, value in os.environ.items() if not name.startswith("KLAMM_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        serves = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(process, serves), name=f"klamm-broker-{self._id}-output", daemon=True
        )
        self._reader.start()
        if not serves.wait(START_TIMEOUT_S) or process.poll() is not None:
            self.kill()
            raise RuntimeError(f"broker {self._id} did not start; its output:\n" + "\n".join(self._lines))

    def _read(self, process: subprocess.Popen[str], serves: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, self._output.open("a") as output:
            for line in process.stdout:
                output.write(line)
                output.flush()
                self._lines.append(line.rstrip())
                if "listens on" in line:
                    serves.set()
        process.wait()
        serves.set()

    def stop(self) -> None:
        assert self._process is not None, "the broker is not running"
        self._process.terminate()
        status = self._process.wait(STOP_TIMEOUT_S)
        self._end()
        assert status == 0, f"broker {self._id} ended with {status}; it said:\n" + "\n".join(self._lines)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._end()

    def _end(self) -> None:
        assert self._process is not None and self._process.stdin is not None and self._reader is not None
        self._process.stdin.close()
        self._reader.join(STOP_TIMEOUT_S)
        self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(number)
