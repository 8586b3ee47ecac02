"""The brokers under measurement, behind one small interface: start, stop, create and delete topics.

Klamm runs as a user runs it, `klamm up` in its own process. Apache Kafka runs as its own scripts start it
(heap 1 GB, G1) and may use every core. Both keep their data below the same directory and get
the same settings where a setting matters here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.peers.apache_kafka import FULL_SPEED, ApacheKafka, PeerFailed, answers_api_versions

from bench import load, processes, wire

KLAMM = "Klamm"
KAFKA = "Apache Kafka"
MACHINE = "machine"
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0
READY_TIMEOUT_SECONDS = 60.0
KAFKA_HEAP_MB = 1024

# Deleted data must be gone before the next measurement; a group must not wait for members that will not come.
SETTINGS = {
    "log.segment.delete.delay.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
# Kafka alone: without it no deleted topic leaves the disk in the first 30 seconds.
KAFKA_SETTINGS = {**SETTINGS, "log.initial.task.delay.ms": "100"}
_topic_numbers = itertools.count(1)


class BrokerFailed(RuntimeError):
    """A broker did not start, or died; the message says which and shows the end of its log."""


class Broker(Protocol):
    name: str
    port: int
    pid: int
    data_dir: Path
    start_seconds: float  # from the start of the process to its first answer

    def stop(self) -> None: ...


def broker_environment() -> dict[str, str]:
    """The environment without the user's broker settings, and without PYTHONDONTWRITEBYTECODE, because an
    installed broker has compiled modules."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("KLAMM_") and key != "PYTHONDONTWRITEBYTECODE"
    }


class KlammBroker:
    """`klamm up` on a free port, placed as --placement says."""

    name = KLAMM
    source: Path | None = None  # where its code is, if not the code that is installed
    options: tuple[str, ...] = ()  # of `klamm up`, beside those that all have

    def __init__(self, work_dir: Path) -> None:
        command = Path(sys.executable).with_name("klamm")
        if not command.exists():
            raise BrokerFailed(f"there is no {command}: install the package first (make setup)")
        self.directory = Path(tempfile.mkdtemp(prefix="klamm-", dir=work_dir))
        self.data_dir = self.directory / "data"
        self.port = _free_port()
        self._log_path = self.directory / "klamm.log"
        self._arguments = [
            str(command),
            "up",
            "--no-console",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data_dir),
        ]
        for key, value in SETTINGS.items():
            self._arguments += ["--set", f"{key}={value}"]
        self._arguments += self.options
        try:
            self.start()
        except BrokerFailed:
            self.stop()
            raise

    def start(self) -> None:
        """Returns at the first answer."""
        with self._log_path.open("wb") as log:
            started = time.perf_counter()
            self._process = subprocess.Popen(
                self._arguments,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=broker_environment() | ({"PYTHONPATH": str(self.source)} if self.source else {}),
            )
        self.pid = self._process.pid
        processes.place_server(self.pid)
        self._wait_for_answer()
        self.start_seconds = time.perf_counter() - started

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not answers_api_versions(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log_path.read_text(errors="replace").strip() or "it said nothing"
                raise BrokerFailed(f"Klamm did not start: {said.splitlines()[-1]}")
            time.sleep(0.001)

    def stop_cleanly(self) -> None:
        """The data stays, so that `start` serves it again."""
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_SECONDS)

    def stop(self) -> None:
        try:
            self.stop_cleanly()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def klamm_of(tree: Path) -> type[KlammBroker]:
    """A broker of another version, checked out at `tree`, as a contestant of its own."""
    source = (tree / "src").resolve()
    if not (source / "klamm").is_dir():
        raise BrokerFailed(f"{tree} is not a checkout of Klamm: there is no {source / 'klamm'}")
    return type("OtherKlammBroker", (KlammBroker,), {"name": f"{KLAMM} of {tree.name}", "source": source})


class KafkaBroker:
    """Apache Kafka on a free port, on all cores."""

    name = KAFKA

    def __init__(self, work_dir: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kafka-", dir=work_dir))
        self._node = ApacheKafka(
            properties=KAFKA_SETTINGS,
            heap_mb=KAFKA_HEAP_MB,
            jvm_options=FULL_SPEED,
            directory=self.directory,
        )
        try:
            self._node.start()
        except PeerFailed as failure:
            raise BrokerFailed(str(failure)) from failure
        self.port, self.pid, self.data_dir = self._node.port, self._node.pid, self._node.data_dir
        self.start_seconds = processes.seconds_since_start(self.pid)

    def stop(self) -> None:
        self._node.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running(kind: type[KlammBroker] | type[KafkaBroker], work_dir: Path) -> Iterator[Broker]:
    broker = kind(work_dir)
    try:
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def topic(broker: Broker, partition_count: int = 1) -> Iterator[str]:
    """A new topic that is ready for requests. At the end of the context it is deleted with its files."""
    name = f"bench-{next(_topic_numbers):06d}"
    create_topic(broker, name, partition_count)
    try:
        yield name
    finally:
        delete_topic(broker, name)


def create_topic(broker: Broker, name: str, partition_count: int) -> None:
    code = wire.topic_error(load.ask(broker.port, wire.create_topic_request(name, partition_count, {})))
    if code != wire.NO_ERROR:
        raise BrokerFailed(f"{broker.name} answered error {code} to the creation of {name}")
    layout, deadline = wire.fetch_layout(name), time.monotonic() + READY_TIMEOUT_SECONDS
    with load.connect(broker.port) as connection:
        for partition in range(partition_count):
            request = wire.fetch_request(name, 0, 1, partition, max_wait_ms=0)
            while struct.unpack_from(">h", load.exchange(connection, request), layout.error_offset - 4) != (
                0,
            ):
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"{broker.name} has no leader for {name}-{partition}")
                time.sleep(0.005)


def delete_topic(broker: Broker, name: str) -> None:
    code = wire.topic_error(load.ask(broker.port, wire.delete_topic_request(name)))
    if code != wire.NO_ERROR:
        raise BrokerFailed(f"{broker.name} answered error {code} to the deletion of {name}")
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    while any(entry.name.startswith(f"{name}-") for entry in os.scandir(broker.data_dir)):
        if time.monotonic() > deadline:
            raise BrokerFailed(f"{broker.name} has not removed the files of {name}")
        time.sleep(0.01)


def segment_files(broker: Broker, name: str) -> list[Path]:
    return sorted(broker.data_dir.glob(f"{name}-*/*.log"))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
