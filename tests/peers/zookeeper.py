"""Runs a real ZooKeeper, one server or an ensemble, from the jars of the Debian package.

    with ZooKeeper() as zookeeper:
        print(zookeeper.hosts)

    with ZooKeeper(servers=3) as zookeeper:
        zookeeper.kill(zookeeper.leader())

The servers live in a temporary folder, listen on free loopback ports and are gone, with their folder, when
the context ends. Their ticks are short, so that sessions may be, too. A server that was killed can be started
again, with its data and its port. A start that fails raises PeerFailed with the end of the server's log.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from tests.peers.apache_kafka import QUICK_START, PeerFailed, free_ports
from tests.peers.kafka_jars import PeerMissing, find_java
from tests.waiting import wait_until

JAR = Path("/usr/share/java/zookeeper.jar")
"""Its manifest names all other jars that it needs."""
TICK_MS = 200
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 20.0
ANSWER_TIMEOUT_SECONDS = 0.5
START_ATTEMPTS = 3  # a free port may be taken by someone else between the look and the bind
LOG_TAIL_BYTES = 6_000


def find_zookeeper_jar() -> Path:
    jar = Path(os.environ.get("ZOOKEEPER_JAR") or JAR)
    if not jar.is_file():
        raise PeerMissing(
            f"ZooKeeper is missing: no {jar}; install zookeeper (Debian) and run `make setup`, "
            "or set ZOOKEEPER_JAR"
        )
    return jar


class ZooKeeper:
    """One server, or an ensemble of several. A server is named by its number, from 0."""

    def __init__(self, servers: int = 1, *, heap_mb: int = 96) -> None:
        self._java = find_java()
        self._jar = find_zookeeper_jar()
        self._count = servers
        self._heap_mb = heap_mb
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.directory = Path()
        self.ports: list[int] = []
        self._ensemble_ports: list[int] = []

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def __enter__(self) -> ZooKeeper:
        for attempt in range(1, START_ATTEMPTS + 1):
            self._prepare()
            try:
                for number in range(self._count):
                    self.launch(number)
                self.wait_until_serving()
                return self
            except BaseException as failure:
                self.stop()
                if "Address already in use" not in str(failure) or attempt == START_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def launch(self, number: int) -> None:
        """Start a server that does not run; returns before it serves."""
        assert number not in self._processes
        folder = self.directory / str(number)
        main = "ZooKeeperServerMain" if self._count == 1 else "quorum.QuorumPeerMain"
        with (folder / "server.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [
                    *(self._java, f"-Xmx{self._heap_mb}m", *QUICK_START),
                    "-Dzookeeper.admin.enableServer=false",
                    "-Dzookeeper.4lw.commands.whitelist=srvr",
                    "-Dzookeeper.fsync.warningthresholdms=60000",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    # The second, where it is there, writes the log that says why a start has failed.
                    *("-cp", f"{self._jar}:{self._jar.with_name('slf4j-simple.jar')}"),
                    f"org.apache.zookeeper.server.{main}",
                    str(folder / "zoo.cfg"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is ours to handle; the server is stopped by `stop`.
                start_new_session=True,
            )

    def wait_until_serving(self) -> None:
        """Until every server that was started answers and an ensemble has its leader."""
        for number in self._processes:
            wait_until(
                lambda number=number: self._serves(number),  # type: ignore[misc]
                lambda number=number: f"ZooKeeper {number} serves:\n{self.log_tail(number)}",  # type: ignore[misc]
                START_TIMEOUT_SECONDS,
            )

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def leader(self) -> int:
        """The number of the server that leads the ensemble, once there is one."""
        return wait_until(self._leaders, "the ensemble has a leader", START_TIMEOUT_SECONDS)[0]

    def stop(self) -> None:
        """Stop all servers and remove their folder."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self.directory != Path():  # which one that was never started has: the working directory
            shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self, number: int) -> str:
        log = self.directory / str(number) / "server.log"
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _leaders(self) -> list[int]:
        return [number for number in self._processes if mode(self.ports[number]) in ("leader", "standalone")]

    def restore(self) -> None:
        """Have all servers run and serve, whatever was done to them."""
        for number in range(self._count):
            if number in self._processes:
                self.resume(number)
            else:
                self.launch(number)
        self.wait_until_serving()

    def _serves(self, number: int) -> bool:
        process = self._processes[number]
        if process.poll() is not None:
            raise PeerFailed(f"ZooKeeper ended with {process.returncode}:\n{self.log_tail(number)}")
        return mode(self.ports[number]) != ""

    def _prepare(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        ports = free_ports(3 * self._count)
        self.ports, self._ensemble_ports = ports[: self._count], ports[self._count :]
        for number in range(self._count):
            folder = self.directory / str(number)
            (folder / "data").mkdir(parents=True)
            (folder / "data/myid").write_text(str(number + 1))
            (folder / "zoo.cfg").write_text(self._settings(number))

    def _settings(self, number: int) -> str:
        settings = {
            "dataDir": str(self.directory / str(number) / "data"),
            "clientPort": str(self.ports[number]),
            "clientPortAddress": "127.0.0.1",
            "tickTime": str(TICK_MS),
            "maxClientCnxns": "0",
            "maxSessionTimeout": "60000",
        }
        if self._count > 1:
            settings |= {"initLimit": "50", "syncLimit": "10"}
            for other in range(self._count):
                peer, election = self._ensemble_ports[2 * other : 2 * other + 2]
                settings[f"server.{other + 1}"] = f"127.0.0.1:{peer}:{election}"
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def mode(port: int) -> str:
    """What a server says it is, "leader", "follower" or "standalone"; nothing while it does not serve."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_SECONDS) as connection:
            connection.sendall(b"srvr")
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        pass  # a server that is not quite up answers, and then fails to hang up
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return ""
