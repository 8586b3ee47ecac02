"""Runs a real Apache Kafka node, broker and controller in one JVM, from the jars alone.

    with ApacheKafka() as kafka:
        print(kafka.bootstrap)

More listeners, each with a port of its own, and users of SCRAM can be asked for:

    with ApacheKafka(listeners={"LOGIN": "SASL_PLAINTEXT"}, scram_users={"me": "secret"}) as kafka:
        print(kafka.port_of("LOGIN"))

A second node, a broker without a controller of its own, can join the first:

    with ApacheKafka() as first, ApacheKafka(joins=first) as second:
        print(first.node_id, second.node_id)

Three or more nodes of one quorum are in `apache_kafka_cluster.py`.

The node lives in a temporary folder, listens on free loopback ports and is gone, with its folder, when the
context ends. A start that fails raises PeerFailed with the end of the node's log. The client suites use it as
the reference that Klamm is held against, and the bench as the peer it is measured against.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.peers.kafka_jars import find_java, find_kafka_jars

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 20.0
START_ATTEMPTS = 3  # a free port may be taken by someone else between the look and the bind
LOG_TAIL_BYTES = 6_000

# For tests: half the processor time until the node answers, and less of everything while it is idle.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")

# For measurements: as Kafka's own start scripts do it, apart from the heap.
FULL_SPEED = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class PeerFailed(RuntimeError):
    """Apache Kafka is there but did not start as it should; the message ends with its log."""


class QuorumMember(NamedTuple):
    """A node's place in a quorum of several controllers."""

    node_id: int
    voters: Mapping[int, int]
    """The ports of all controllers by node id."""
    cluster_id: str


class ApacheKafka:
    """One node of Apache Kafka. `properties` win over the defaults that suit a test."""

    def __init__(
        self,
        jars_dir: Path | str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        heap_mb: int = 512,
        jvm_options: tuple[str, ...] = QUICK_START,
        directory: Path | str | None = None,
        listeners: Mapping[str, str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        advertised_host: str = "127.0.0.1",
        joins: ApacheKafka | None = None,
        quorum: QuorumMember | None = None,
    ) -> None:
        """`listeners`: their names and security protocols; what these need is in `properties`. `joins`: a
        running node, whose cluster this one becomes the second broker of. `quorum`: this node is one of
        several controllers."""
        self._java = find_java()
        self._jars = find_kafka_jars(jars_dir)
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._jvm_options = jvm_options
        self._given_directory = Path(directory) if directory else None
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path()
        self._listeners = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._scram_users = dict(scram_users or {})
        self._advertised_host = advertised_host
        self._ports: dict[str, int] = {}
        self._joins = joins
        self._quorum = quorum
        self.node_id = 1 if joins is None else joins.node_id + 1
        if quorum is not None:
            self.node_id = quorum.node_id
        self.cluster_id = ""
        self.controller = ""
        """Where the cluster's controller is, as controller.quorum.voters says it."""

    @property
    def port(self) -> int:
        return self._ports["PLAINTEXT"]

    def port_of(self, listener: str) -> int:
        return self._ports[listener]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node has not been started"
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        """The node's log directory: its segments, indexes and checkpoints."""
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def __enter__(self) -> ApacheKafka:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Format a fresh folder, start the node and return when it answers requests."""
        for attempt in range(1, START_ATTEMPTS + 1):
            self.prepare()
            try:
                self.launch()
                return
            except PeerFailed as failure:
                port_was_taken = "Address already in use" in str(failure)
                self.stop()
                if not port_was_taken or attempt == START_ATTEMPTS:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop the node (SIGTERM, then SIGKILL) and remove its folder unless the caller gave one."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._given_directory is None and self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the node at once; its folder stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def prepare(self, formatted_like: ApacheKafka | None = None) -> None:
        """Choose ports and format a fresh folder, or copy the format of another node, which is quicker."""
        if self._given_directory is not None:
            self.directory = self._given_directory
            self.directory.mkdir(parents=True, exist_ok=True)
        else:
            self.directory = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        controller_port, *ports = free_ports(1 + len(self._listeners))
        self._ports = dict(zip(self._listeners, ports, strict=True))
        if self._quorum is not None:
            controller_port = self._quorum.voters[self.node_id]
            self.cluster_id = self._quorum.cluster_id
            self.controller = ",".join(
                f"{voter}@127.0.0.1:{port}" for voter, port in self._quorum.voters.items()
            )
        elif self._joins is None:
            self.cluster_id = new_id()
            self.controller = f"{self.node_id}@127.0.0.1:{controller_port}"
        else:
            self.cluster_id, self.controller = self._joins.cluster_id, self._joins.controller
        (self.directory / "log4j2.properties").write_text(LOGGING)
        settings = self._default_settings(controller_port) | self._properties
        server_properties = self.directory / "server.properties"
        server_properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if formatted_like is None:
            self._format(server_properties)
        else:
            self._copy_format(formatted_like)

    def _copy_format(self, other: ApacheKafka) -> None:
        shutil.copytree(other.data_dir, self.data_dir)
        own = {"node.id": str(self.node_id), "directory.id": new_id()}
        names = self.data_dir / "meta.properties"
        lines = (line.partition("=") for line in names.read_text().splitlines())
        names.write_text("".join(f"{name}{sign}{own.get(name, value)}\n" for name, sign, value in lines))

    def _format(self, server_properties: Path) -> None:
        done = subprocess.run(
            [
                *(self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._common_options()),
                *("kafka.tools.StorageTool", "format", "--ignore-formatted"),
                *("-t", self.cluster_id, "-c", str(server_properties)),
                *self._scram_options(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # passwords are arguments
            timeout=START_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise PeerFailed(f"Apache Kafka could not format {self.data_dir}:\n{done.stdout.decode()}")

    def _default_settings(self, controller_port: int) -> dict[str, str]:
        own_controller = {"CONTROLLER": controller_port} if self._joins is None else {}
        return {
            "process.roles": "broker,controller" if own_controller else "broker",
            "node.id": str(self.node_id),
            "controller.quorum.voters": self.controller,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(
                f"{name}://127.0.0.1:{port}" for name, port in {**self._ports, **own_controller}.items()
            ),
            "advertised.listeners": ",".join(
                f"{name}://{self._advertised_host}:{port}" for name, port in self._ports.items()
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}"
                for name, protocol in {**self._listeners, "CONTROLLER": "PLAINTEXT"}.items()
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    def _scram_options(self) -> Iterator[str]:
        for name, password in self._scram_users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                yield from ("--add-scram", f"{mechanism}=[name={name},password={password}]")

    def _common_options(self) -> tuple[str, ...]:
        return (
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            *("-cp", f"{self._jars}/*"),
        )

    def launch(self) -> None:
        """Start the node in its folder, also one that was killed, and return when it answers requests."""
        heap = f"{self._heap_mb}m"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(self._java, f"-Xms{heap}", f"-Xmx{heap}", *self._jvm_options, *self._common_options()),
                    *("kafka.Kafka", str(self.directory / "server.properties")),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is ours to handle; the node is stopped by `stop`.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not answers_api_versions(self.port):
            if self._process.poll() is not None:
                raise PeerFailed(f"Apache Kafka ended with {self._process.returncode}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"Apache Kafka said nothing for {START_TIMEOUT_SECONDS} s:\n{self._log_tail()}"
                )
            time.sleep(0.02)

    def _log_tail(self) -> str:
        return self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def new_id() -> str:
    """An id of a cluster or a directory as Kafka makes them; none begins with a dash."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "a")


def answers_api_versions(port: int, host: str = "127.0.0.1", timeout_seconds: float = 5.0) -> bool:
    """Whether a broker at this address answers an ApiVersions request: the first thing every client sends."""
    client_id = b"probe"
    body = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">ih", answer[4:]) == (1, 0)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
