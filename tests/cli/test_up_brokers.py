"""`klamm up --brokers` and `klamm broker` as a user types them: several processes that are one cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Command, complaint, run_klamm, run_up
from tests.metrics.scraping import get_from, parse
from tests.waiting import wait_until

import klamm
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.testing.wire import WireConnection

READY = "brokers listen on "
PATIENCE_S = 60.0
TOPIC = "replicated"


def addresses_of(command: Command) -> list[str]:
    return command.wait_for_line(READY).rpartition(" ")[2].split(",")


def status_of(directory: Path, address: str) -> dict[str, Any]:
    with run_klamm(directory, "cluster", "status", "--bootstrap", address, "-o", "json") as command:
        assert command.wait() == 0, command
    seen: dict[str, Any] = json.loads("\n".join(command.printed))
    return seen


def pids_of(directory: Path, address: str) -> dict[int, int]:
    return {broker["id"]: broker["pid"] for broker in status_of(directory, address)["brokers"]}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids: dict[int, int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids.values())), lambda: f"all of {pids} have ended", PATIENCE_S)


def produce(addresses: list[str], value: bytes) -> int:
    """The offset of a record that all in-sync replicas have."""
    with klamm.Producer(",".join(addresses), acks="all") as producer:
        return producer.send(TOPIC, value, partition=0).result(PATIENCE_S).offset


def in_sync_counts(addresses: list[str]) -> list[int]:
    with klamm.Admin(",".join(addresses)) as admin:
        partitions = admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions
        return [len(partition.in_sync_replicas) for partition in partitions]


def create_topic(addresses: list[str]) -> None:
    with klamm.Admin(",".join(addresses)) as admin:
        admin.create_topic(TOPIC, 3, 3, timeout=PATIENCE_S)
    assert in_sync_counts(addresses) == [3, 3, 3]


def free_run_of_ports(count: int) -> int:
    """The first of several free ports in a row."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no free ports")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_three_brokers_are_a_cluster_and_stop_when_told(tmp_path: Path) -> None:
    port = free_run_of_ports(3)
    with run_up(tmp_path, "--brokers", "3", "--port", str(port), "--data-dir", "data") as command:
        addresses = addresses_of(command)
        assert addresses == [f"127.0.0.1:{port + number}" for number in range(3)]
        pids = pids_of(tmp_path, addresses[1])
        assert set(pids) == {1, 2, 3} and all(map(is_alive, pids.values()))
        create_topic(addresses)
        assert produce(addresses, b"one") == 0
        assert command.stop(signal.SIGTERM) == 0, command
    assert not any(map(is_alive, pids.values()))
    assert command.printed[-1] == "klamm: stopped cleanly"
    assert [line for line in command.printed if "broker" in line and "stopped cleanly" in line] == [
        f"klamm: broker {broker_id} stopped cleanly" for broker_id in (1, 2, 3)
    ]
    logged = [json.loads(line) for line in command.complained if line.startswith("{")]
    assert any(
        line["broker"] == 3 and line["message"].startswith("broker 3 is registered") for line in logged
    ), "what brokers log goes through, with the broker that logged it"
    assert not any("Traceback" in line for line in command.complained), command

    line = complaint(tmp_path, "up", "--port", "0", "--data-dir", "data")
    assert "data of 3 brokers" in line and "--brokers 3" in line

    with run_up(tmp_path, "--brokers", "3", "--port", str(port), "--data-dir", "data") as command:
        assert addresses_of(command) == addresses
        assert produce(addresses, b"two") == 1, "the data of the first run is there"
        pids = pids_of(tmp_path, addresses[0])
        command.stop(signal.SIGKILL)
        wait_for_end(pids)
    assert not any("Traceback" in line for line in command.complained), command


def test_a_broker_that_dies_is_started_again_where_it_was(tmp_path: Path) -> None:
    with run_up(tmp_path, "--brokers", "3", "--port", "0", "--data-dir", "data") as command:
        addresses = addresses_of(command)
        create_topic(addresses)
        assert produce(addresses, b"before") == 0
        pids = pids_of(tmp_path, addresses[0])
        os.kill(pids[2], signal.SIGKILL)
        command.wait_for_line("broker 2 ended with SIGKILL")
        assert command.wait_for_line("broker 2 listens on").split()[-2] == addresses[1]
        assert produce(addresses, b"after") == 1
        wait_until(lambda: in_sync_counts(addresses) == [3, 3, 3], "broker 2 catches up", PATIENCE_S)
        now = pids_of(tmp_path, addresses[1])
        assert now[2] != pids[2] and (now[1], now[3]) == (pids[1], pids[3])
        assert command.stop(signal.SIGINT) == 0, command
        wait_for_end(now)


@pytest.mark.long
def test_a_broker_that_dies_stays_down_if_the_user_wants_it(tmp_path: Path) -> None:
    arguments = ("--brokers", "3", "--no-restart", "--port", "0", "--data-dir", "data")
    with run_up(tmp_path, *arguments) as command:
        addresses = addresses_of(command)
        create_topic(addresses)
        pids = pids_of(tmp_path, addresses[0])
        os.kill(pids[3], signal.SIGKILL)
        assert "not started again" in command.wait_for_line("broker 3 ended with SIGKILL")
        wait_until(lambda: in_sync_counts(addresses[:2]) == [2, 2, 2], "broker 3 leaves the ISR", PATIENCE_S)
        seen = status_of(tmp_path, addresses[0])
        assert [broker["id"] for broker in seen["brokers"]] == [1, 2]
        assert [(each["topic"], each["partition"]) for each in seen["under_replicated"]] == [
            (TOPIC, number) for number in range(3)
        ]
        assert seen["offline"] == []
        assert produce(addresses, b"with two") == 0
        assert command.stop(signal.SIGTERM) == 0, command
        wait_for_end(pids)


@pytest.mark.long
def test_a_broker_joins_a_cluster_that_runs(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'data' / 'klamm-metadata.sqlite'}"
    with run_up(tmp_path, "--brokers", "2", "--port", "0", "--data-dir", "data") as command:
        addresses = addresses_of(command)
        listener = ("--listeners", "PLAINTEXT://127.0.0.1:0")
        joining = ("broker", "--coordination", store, *listener)
        with run_klamm(tmp_path, *joining, "--id", "4", "--data-dir", "data-4", "--rack", "far") as fourth:
            addresses.append(fourth.wait_for_line("broker 4 listens on").split()[-1])
            brokers = status_of(tmp_path, addresses[0])["brokers"]
            assert [(each["id"], each["rack"]) for each in brokers] == [(1, None), (2, None), (4, "far")]
            create_topic(addresses)
            assert produce(addresses, b"one") == 0
            # A broker waits for an older session with its id to end for as long as its own may be silent.
            again = ("--data-dir", "data-again", "--set", "broker.session.timeout.ms=1000")
            with run_klamm(tmp_path, *joining, "--id", "4", *again) as twin:
                assert twin.wait() == 1, twin
            assert twin.printed == []
            assert [line for line in twin.complained if line.startswith("klamm: ")] == [
                "klamm: another broker with the id 4 is alive in this cluster: stop it, or choose another id "
                "(node.id)"
            ], twin
            assert in_sync_counts(addresses) == [3, 3, 3], "the first of that id is undisturbed"
            assert fourth.stop(signal.SIGTERM) == 0, fourth
        wait_until(lambda: in_sync_counts(addresses[:2]) == [2, 2, 2], "broker 4 has left", PATIENCE_S)
        assert command.stop(signal.SIGTERM) == 0, command


def test_each_broker_serves_metrics_and_health_on_a_port_of_its_own(tmp_path: Path) -> None:
    first = free_ports_in_a_row(2)
    arguments = ("--brokers", "2", "--port", "0", "--http-port", str(first), "--data-dir", "data")
    with run_up(tmp_path, *arguments) as command:
        command.wait_for_line(READY)
        for port in (first, first + 1):
            assert get_from(f"127.0.0.1:{port}", "/readyz").body == "ready\n"
            seen = parse(get_from(f"127.0.0.1:{port}", "/metrics").body)
            assert seen.value("kafka_server_replicamanager_partitioncount") == 0
        line = complaint(tmp_path, "up", *arguments[:-1], "other")
        assert f"port {first} " in line and "--http-port" in line
        assert command.stop(signal.SIGTERM) == 0, command
    line = complaint(tmp_path, "up", "--brokers", "2", "--set", "klamm.http.listener=127.0.0.1:1")
    assert "klamm.http.listener differs from broker to broker" in line


def free_ports_in_a_row(count: int) -> int:
    """The first of several ports that nobody listens on."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            first: int = probe.getsockname()[1]
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        return first


def test_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'metadata.sqlite'}"
    where = ("--listeners", "PLAINTEXT://127.0.0.1:0", "--advertised-listeners", "PLAINTEXT://told.invalid:0")
    starting = ("broker", "--id", "7", "--coordination", store, "--data-dir", "data", *where)
    with run_klamm(tmp_path, *starting) as command:
        # The port that was free is the one that is advertised.
        host, _, port = command.wait_for_line("broker 7 listens on").split()[-1].rpartition(":")
        with WireConnection(f"127.0.0.1:{port}") as wire:
            (told,) = wire.call(MetadataRequest(topics=None), 12).brokers
        assert (told.node_id, told.host, told.port) == (7, "told.invalid", int(port))
        assert host == "told.invalid"
        assert command.stop(signal.SIGTERM) == 0, command


def test_a_port_that_is_taken_is_one_line_and_nothing_is_started(tmp_path: Path, taken_port: int) -> None:
    first = taken_port - 1
    line = complaint(tmp_path, "up", "--brokers", "2", "--port", str(first), "--data-dir", "data")
    assert f"port {taken_port}" in line or f"port {first}" in line
    assert "taken" in line and not (tmp_path / "data").exists()
    line = complaint(tmp_path, "up", "--brokers", "2", "--port", "65535", "--data-dir", "data")
    assert "65535" in line and not (tmp_path / "data").exists()


@pytest.mark.long
def test_a_broker_that_cannot_start_says_why_and_the_others_end(tmp_path: Path) -> None:
    """What is not seen before: here a file where the second broker wants its directory."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broker-2").write_text("not a directory")
    with run_up(tmp_path, "--brokers", "2", "--port", "0", "--data-dir", "data") as command:
        assert command.wait() == 1, command
    complaints = [line for line in command.complained if line.startswith("klamm: ")]
    assert len(complaints) == 2 and "broker-2" in complaints[0], command
    assert complaints[1] == "klamm: broker 2 ended with status 1 before it served"
    assert not any("listen" in line for line in command.printed)
    # Its locks and its port are free again: nothing of broker 1 is left.
    (tmp_path / "data" / "broker-2").unlink()
    with run_up(tmp_path, "--brokers", "2", "--port", "0", "--data-dir", "data") as command:
        assert len(addresses_of(command)) == 2
        assert command.stop(signal.SIGTERM) == 0, command


def test_the_directory_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        command.wait_for_line("listens on")
        assert command.stop(signal.SIGTERM) == 0, command
    before = sorted(tmp_path.rglob("*"))
    line = complaint(tmp_path, "up", "--brokers", "3", "--port", "0", "--data-dir", "data")
    assert "data of a single broker" in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("log.dirs=elsewhere", ["log.dirs", "klamm broker"]),
        ("advertised.listeners=PLAINTEXT://here:9092", ["advertised.listeners", "klamm broker"]),
        ("num.partitions=0", ["num.partitions"]),
    ],
)
def test_settings_are_refused_once(tmp_path: Path, setting: str, expected: list[str]) -> None:
    line = complaint(tmp_path, "up", "--brokers", "3", "--data-dir", "data", "--set", setting)
    assert all(word in line for word in expected), line


@pytest.mark.parametrize("address", ["etcd://localhost", "zookeeper://"])
def test_a_bad_address_of_the_store_is_one_line(tmp_path: Path, address: str) -> None:
    line = complaint(tmp_path, "broker", "--id", "1", "--coordination", address, "--data-dir", "data")
    assert "klamm.coordination.url" in line and address in line


def test_without_the_extra_for_zookeeper_the_message_names_it(tmp_path: Path) -> None:
    # A kazoo that cannot be imported stands before the real one.
    (tmp_path / "missing" / "kazoo").mkdir(parents=True)
    (tmp_path / "missing" / "kazoo" / "__init__.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path / "missing"), os.environ.get("PYTHONPATH"))))
    store = ("--coordination", "zookeeper://127.0.0.1:1/klamm", "--listeners", "PLAINTEXT://127.0.0.1:0")
    line = complaint(tmp_path, "broker", "--id", "1", *store, "--data-dir", "data", PYTHONPATH=path)
    assert "klamm[zookeeper]" in line
