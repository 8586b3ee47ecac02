"""`klamm cluster status` as a user types it, knowing one address."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tests.cli.commands import KLAMM, Command
from tests.clients.confluent import ConfluentClient
from tests.waiting import wait_until

from klamm.cli.local_processes import listening_process
from klamm.client.admin.types import NewTopic
from klamm.client.plain.admin import Admin
from klamm.testing import Cluster


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


def test_it_names_the_partitions_without_a_leader_and_those_that_lack_replicas(tmp_path: Path) -> None:
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic("alone", assignments={0: [1], 1: [2]}),
                    NewTopic("both", assignments={0: [1, 2], 1: [2, 1]}),
                ]
            )
        cluster.kill(2)
        left = cluster.broker(1).node.cluster

        def is_known() -> bool:
            both = left.image.topics["both"].partitions
            return list(left.image.brokers) == [1] and all(each.isr == (1,) for each in both)

        wait_until(is_known, "broker 1 knows that broker 2 is gone")
        with status(tmp_path, "--bootstrap", cluster.address(1)) as command:
            assert command.wait() == 0, command
        shown = [line.rstrip() for line in command.printed]
        assert shown[-6:] == [
            "offline (no leader): 1",
            "  alone-1",
            "",
            "under-replicated: 2",
            "  both-0 (in sync: [1] of [1, 2])",
            "  both-1 (in sync: [1] of [2, 1])",
        ]
        with status(tmp_path, "--bootstrap", cluster.address(1), "-o", "json") as command:
            assert command.wait() == 0, command
    seen = json.loads("\n".join(command.printed))
    assert [broker["id"] for broker in seen["brokers"]] == [1]
    assert seen["offline"] == [{"topic": "alone", "partition": 1, "replicas": [2]}]
    assert seen["under_replicated"] == [
        {"topic": "both", "partition": 0, "replicas": [1, 2], "in_sync": [1]},
        {"topic": "both", "partition": 1, "replicas": [2, 1], "in_sync": [1]},
    ]


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
