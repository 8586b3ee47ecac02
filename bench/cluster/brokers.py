"""Clusters of three brokers behind one small interface: start, stop and kill one of them, make topics.

Klamm's brokers are the processes that `klamm up --brokers 3` starts; no supervisor starts them again, because
the bench decides when one is dead and when it returns. Apache Kafka's are three nodes, each broker and
controller (KRaft), heap 1 GB, G1. Brokers have the ids 1, 2, 3 and keep ports and data when they return.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.peers.apache_kafka import FULL_SPEED, LOGGING, answers_api_versions, free_ports
from tests.peers.kafka_jars import find_java, find_kafka_jars

from bench import load, processes, wire
from bench.peers import (
    KAFKA,
    KAFKA_HEAP_MB,
    KAFKA_SETTINGS,
    KLAMM,
    READY_TIMEOUT_SECONDS,
    SETTINGS,
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    BrokerFailed,
    broker_environment,
)
from klamm.cli.supervisor import BrokerPlan, plan_brokers

IDS = (1, 2, 3)
LOOK_SECONDS = 0.005
_topic_numbers = itertools.count(1)


class Cluster:
    """Three processes. What differs between the two kinds is the command that runs a broker."""

    name: str

    def __init__(self, work_dir: Path) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix=f"{self.name.split()[-1].lower()}-cluster-", dir=work_dir)
        )
        self.ports = dict(zip(IDS, free_ports(len(IDS)), strict=True))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def command(self, broker_id: int) -> list[str]:
        raise NotImplementedError

    def data_dir(self, broker_id: int) -> Path:
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Of any broker that runs."""
        return self.ports[min(self._processes)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def running(self) -> list[int]:
        return sorted(self._processes)

    def pid(self, broker_id: int) -> int:
        return self._processes[broker_id].pid

    def start(self) -> None:
        for broker_id in IDS:
            self.launch(broker_id)
        for broker_id in IDS:
            self.wait_for_answer(broker_id)

    def launch(self, broker_id: int) -> None:
        with (self.directory / f"broker-{broker_id}.log").open("ab") as log:
            self._processes[broker_id] = subprocess.Popen(
                self.command(broker_id),
                stdin=subprocess.PIPE,  # Klamm's brokers end with it, should the bench die
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=broker_environment(),
            )
        processes.place_server(self.pid(broker_id))

    def wait_for_answer(self, broker_id: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not answers_api_versions(self.ports[broker_id]):
            if self._processes[broker_id].poll() is not None or time.monotonic() > deadline:
                said = (self.directory / f"broker-{broker_id}.log").read_text(errors="replace").strip()
                last = said.splitlines()[-1] if said else "it said nothing"
                raise BrokerFailed(f"broker {broker_id} of {self.name} did not start: {last}")
            time.sleep(LOOK_SECONDS)

    def kill(self, broker_id: int) -> None:
        process = self._processes.pop(broker_id)
        process.kill()
        self._reap(process)

    def stop_broker(self, broker_id: int) -> None:
        process = self._processes.pop(broker_id)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        self._reap(process)

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> None:
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def stop(self) -> None:
        """Nothing is kept, so nothing needs to be handed over or flushed."""
        for broker_id in self.running:
            self.kill(broker_id)
        shutil.rmtree(self.directory, ignore_errors=True)


class KlammCluster(Cluster):
    name = KLAMM

    def __init__(
        self, work_dir: Path, coordination: str | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """Without `coordination`, the brokers share an SQLite file."""
        super().__init__(work_dir)
        options = [f"--set={key}={value}" for key, value in {**SETTINGS, **(settings or {})}.items()]
        executable = (sys.executable, "-c", "from klamm.cli.main import main; main()")
        if coordination is not None:
            options += ["--coordination", coordination]
        plans = plan_brokers(len(IDS), "127.0.0.1", 0, self.directory, options, executable)
        self._plans: dict[int, BrokerPlan] = {plan.id: plan for plan in plans}

    def command(self, broker_id: int) -> list[str]:
        return self._plans[broker_id].words(f"127.0.0.1:{self.ports[broker_id]}")

    def data_dir(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"


class KafkaCluster(Cluster):
    name = KAFKA

    def __init__(self, work_dir: Path) -> None:
        super().__init__(work_dir)
        self._java, self._jars = find_java(), find_kafka_jars()
        self._controller_ports = dict(zip(IDS, free_ports(len(IDS)), strict=True))
        (self.directory / "log4j2.properties").write_text(LOGGING)
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "a")
        for broker_id in IDS:
            lines = (f"{key}={value}\n" for key, value in self._settings(broker_id).items())
            self._properties(broker_id).write_text("".join(lines))
            self._format(broker_id, cluster_id)

    def _properties(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}.properties"

    def _settings(self, broker_id: int) -> dict[str, str]:
        client = f"PLAINTEXT://127.0.0.1:{self.ports[broker_id]}"
        return {
            "process.roles": "broker,controller",
            "node.id": str(broker_id),
            "controller.quorum.voters": ",".join(
                f"{id_}@127.0.0.1:{port}" for id_, port in self._controller_ports.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{client},CONTROLLER://127.0.0.1:{self._controller_ports[broker_id]}",
            "advertised.listeners": client,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_dir(broker_id)),
            **KAFKA_SETTINGS,
        }

    def _format(self, broker_id: int, cluster_id: str) -> None:
        done = subprocess.run(
            [
                *(self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"),
                *("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"),
                str(self._properties(broker_id)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerFailed(f"Apache Kafka could not format its directory: {done.stdout.decode()[-600:]}")

    def command(self, broker_id: int) -> list[str]:
        heap = f"{KAFKA_HEAP_MB}m"
        return [
            *(self._java, f"-Xms{heap}", f"-Xmx{heap}", *FULL_SPEED),
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            *("-cp", f"{self._jars}/*", "kafka.Kafka", str(self._properties(broker_id))),
        ]

    def data_dir(self, broker_id: int) -> Path:
        return self.directory / f"data-{broker_id}"


@contextlib.contextmanager
def started(make: Callable[[], Cluster]) -> Iterator[Cluster]:
    cluster = make()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


# ---- topics


@contextlib.contextmanager
def topic(cluster: Cluster, partition_count: int, assignment: Sequence[Sequence[int]] = ()) -> Iterator[str]:
    """A new topic with three replicas of each partition, all in sync; gone from the disks at the end."""
    name = f"bench-{next(_topic_numbers):06d}"
    create_topic(cluster, name, partition_count, assignment)
    wait_until_in_sync(cluster, name, partition_count)
    try:
        yield name
    finally:
        delete_topic(cluster, name)


def create_topic(
    cluster: Cluster, name: str, partition_count: int, assignment: Sequence[Sequence[int]] = ()
) -> None:
    """`assignment` names the replicas of each partition, the first one to be its leader."""
    configs = {"min.insync.replicas": "2"}
    request = wire.create_topic_request(name, partition_count, configs, len(IDS), assignment)
    _check(cluster, name, wire.topic_error(load.ask(cluster.port, request)))


def delete_topic(cluster: Cluster, name: str) -> None:
    _check(cluster, name, wire.topic_error(load.ask(cluster.port, wire.delete_topic_request(name))))
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    for broker_id in cluster.running:
        while any(entry.name.startswith(f"{name}-") for entry in os.scandir(cluster.data_dir(broker_id))):
            if time.monotonic() > deadline:
                raise BrokerFailed(
                    f"broker {broker_id} of {cluster.name} has not removed the files of {name}"
                )
            time.sleep(0.02)


def _check(cluster: Cluster, name: str, code: int) -> None:
    if code != wire.NO_ERROR:
        raise BrokerFailed(f"{cluster.name} answered error {code} to a request about the topic {name}")


def partitions_of(cluster: Cluster, name: str, broker_id: int | None = None) -> list[wire.PartitionState]:
    """What a broker says of a topic: any broker that runs, or the one that is named."""
    port = cluster.port if broker_id is None else cluster.ports[broker_id]
    return wire.read_metadata(load.ask(port, wire.metadata_request(name)))


def wait_until_in_sync(cluster: Cluster, name: str, partition_count: int) -> None:
    """Until every broker knows a leader and three replicas in sync of each partition."""
    for broker_id in IDS:
        wait_for(
            cluster,
            name,
            broker_id,
            lambda found: (
                len(found) == partition_count
                and all(state.leader in IDS and len(state.isr) == len(IDS) for state in found)
            ),
        )


def wait_for(
    cluster: Cluster,
    name: str,
    broker_id: int,
    is_so: Callable[[list[wire.PartitionState]], bool],
    *,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Until what a broker says of a topic is so; it is asked every `look_seconds`."""
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    with load.connect(cluster.ports[broker_id]) as connection:
        while not is_so(wire.read_metadata(load.exchange(connection, wire.metadata_request(name)))):
            if time.monotonic() > deadline:
                raise BrokerFailed(
                    f"{name} is not in order after {READY_TIMEOUT_SECONDS} s on {cluster.name}"
                )
            time.sleep(look_seconds)
