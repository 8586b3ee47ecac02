"""`klamm up` as a user types it: it starts at once, says where it listens, and stops when told."""

from __future__ import annotations

import re
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Command, run_up
from tests.clients.confluent import ConfluentClient
from tests.clients.contract import Record, values
from tests.peers.apache_kafka import answers_api_versions

LISTENS = "listens on "
START_CPU_SECONDS = 2.5
"""Processor time, which a busy machine hardly changes. The bench measures how long the start takes."""


def address_of(command: Command) -> str:
    return command.wait_for_line(LISTENS).rpartition(" ")[2]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def fails(directory: Path, *arguments: str, **variables: str) -> str:
    """Run a command that must fail at once, and return the one line that it complains with."""
    with run_up(directory, *arguments, **variables) as command:
        assert command.wait() != 0, command
        assert command.printed == []
        (line,) = command.complained
        assert line.startswith("klamm: ")
        return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_starts_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        address = address_of(command)
        client = ConfluentClient(address)
        client.create_topic("kept")
        assert client.produce("kept", [Record(b"before")]) == [0]
        assert command.stop(number) == 0, command
        assert "stopped cleanly" in command.printed[-1]
    assert not any("Traceback" in line for line in command.complained)

    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        client = ConfluentClient(address_of(command))
        assert client.produce("kept", [Record(b"after")]) == [1]
        assert values(client.consume("kept", 0, 0, 2)) == [b"before", b"after"]
        assert command.stop(number) == 0
    assert not any("recover" in line.lower() for line in command.complained), (
        "a clean shutdown needs no recovery"
    )


def test_starting_and_stopping_takes_little_processor_time(tmp_path: Path) -> None:
    def processor_time_of_ended_commands() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = processor_time_of_ended_commands()
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        command.wait_for_line(LISTENS)
        assert command.stop(signal.SIGTERM) == 0, command
    assert processor_time_of_ended_commands() - before < START_CPU_SECONDS


def test_it_recovers_when_it_was_killed(tmp_path: Path) -> None:
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        client = ConfluentClient(address_of(command))
        client.create_topic("kept")
        client.produce("kept", [Record(b"acknowledged")])
        assert command.stop(signal.SIGKILL) == -signal.SIGKILL
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        client = ConfluentClient(address_of(command))
        assert values(client.consume("kept", 0, 0, 1)) == [b"acknowledged"]
        assert any("recover" in line.lower() for line in command.complained), "it says what it did"
        assert command.stop(signal.SIGTERM) == 0


def test_it_stops_while_clients_are_connected(tmp_path: Path) -> None:
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        host, port = address_of(command).rsplit(":", 1)
        with socket.create_connection((host, int(port))):
            client = ConfluentClient(f"{host}:{port}")
            client.create_topic("watched")
            member = client.join("watchers", "watched", client_id="watcher", strategy="range")
            assert command.stop(signal.SIGTERM) == 0, command
        member.leave()


def test_a_port_that_is_taken(tmp_path: Path, taken_port: int) -> None:
    line = fails(tmp_path, "--port", str(taken_port), "--data-dir", "data")
    assert f"port {taken_port}" in line and "taken" in line


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with run_up(tmp_path, "--port", "0", "--data-dir", "data") as command:
        address = address_of(command)
        line = fails(tmp_path, "--port", "0", "--data-dir", "data")
        assert "data" in line and "in use" in line
        assert answers_api_versions(int(address.rpartition(":")[2])), "the first broker is undisturbed"
        assert command.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_needs_an_advertised_address(tmp_path: Path, host: str) -> None:
    line = fails(tmp_path, "--host", host, "--port", "0", "--data-dir", "data")
    assert "advertised.listeners" in line
    assert not (tmp_path / "data").exists(), "nothing is made by a command that cannot work"


def test_a_wildcard_with_an_advertised_address(tmp_path: Path, taken_port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"
    with run_up(
        tmp_path, "--host", "0.0.0.0", "--port", str(port), "--data-dir", "data", "--set", advertised
    ) as command:
        command.wait_for_line(LISTENS)
        assert ConfluentClient(f"127.0.0.1:{port}").produce("made", [Record(b"by name")]) == [0]
        assert command.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("log.retention.hour=3", ["log.retention.hour", "log.retention.hours"]),
        ("log.segment.bytes=many", ["log.segment.bytes", "many", "1048576"]),
        ("num.partitions=0", ["num.partitions", "0", "1"]),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, setting: str, expected: list[str]) -> None:
    line = fails(tmp_path, "--port", "0", "--data-dir", "data", "--set", setting)
    assert all(word in line for word in expected), line


def test_a_configuration_file_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.properties" in fails(tmp_path, "--port", "0", "--config", "nowhere.properties")


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=5\nlog.segment.bytes=2000000\n")
    flags = ("--port", "0", "--data-dir", "data", "--config", str(file), "--set", "num.partitions=4")
    # The last is for commands that talk to a broker, and no setting of one.
    variables = {
        "KLAMM_NUM_PARTITIONS": "3",
        "KLAMM_LOG_RETENTION_HOURS": "6",
        "KLAMM_BOOTSTRAP": "elsewhere:9092",
    }
    with run_up(tmp_path, *flags, **variables) as command:
        client = ConfluentClient(address_of(command))
        client.create_topic("t", -1)
        config = client.topic_config("t")
        assert client.partition_count("t") == 4
        assert config["retention.ms"] == str(6 * 3_600_000)
        assert config["segment.bytes"] == "2000000"
        assert command.stop(signal.SIGTERM) == 0


def test_help_names_the_options(tmp_path: Path) -> None:
    with run_up(tmp_path, "--help", COLUMNS="200", TERM="dumb") as command:
        assert command.wait() == 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(command.printed))
        for option in ("--host", "--port", "--data-dir", "--config", "--set"):
            assert option in text
