"""`klamm cluster status` as a user types it, knowing one address."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tests.cli.commands import KLAMM, Command
from tests.clients.confluent import ConfluentClient

from klamm.cli.local_processes import listening_process


def status(directory: Path, *arguments: str) -> Command:
    return Command([KLAMM, "cluster", "status", *arguments], directory, TERM="dumb")


def test_it_shows_the_broker_its_process_and_no_complaint(tmp_path: Path, klamm_bootstrap: str) -> None:
    ConfluentClient(klamm_bootstrap).create_topic("shown-by-status", 2)
    with status(tmp_path, "--bootstrap", klamm_bootstrap) as command:
        assert command.wait() == 0, command
    text = "\n".join(command.printed)
    assert klamm_bootstrap in text and str(os.getpid()) in text and "controller" in text
    assert "all replicas are in sync" in text
    with status(tmp_path, "--bootstrap", klamm_bootstrap, "-o", "json") as command:
        assert command.wait() == 0, command
    seen = json.loads("\n".join(command.printed))
    host, port = klamm_bootstrap.rsplit(":", 1)
    assert seen["brokers"] == [{"id": 1, "host": host, "port": int(port), "rack": None, "pid": os.getpid()}]
    assert seen["controller"] == 1
    assert seen["partitions"] >= 2
    assert seen["offline"] == seen["under_replicated"] == []


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    with status(tmp_path, "--bootstrap", nobody, "--timeout", "1") as command:
        assert command.wait() == 1, command
    assert command.printed == []
    (line,) = command.complained
    assert line.startswith("klamm: ") and nobody in line


def test_the_process_of_a_port_is_found_only_on_this_machine() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert listening_process("localhost", port) == os.getpid()
        assert listening_process("192.0.2.1", port) is None
        assert listening_process("name.invalid", port) is None
    assert listening_process("127.0.0.1", port) is None
