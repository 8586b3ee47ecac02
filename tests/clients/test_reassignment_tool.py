"""Kafka's kafka-reassign-partitions moves replicas between brokers, throttled, and between directories."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clients.java_tools import JavaTools
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

import klamm
from klamm.testing.broker import Broker
from klamm.testing.cluster import Cluster

SIZE_BYTES = 20_000_000
RATE_BYTES = 4_000_000


@contextmanager
def java_tools(bootstrap: str) -> Iterator[JavaTools]:
    try:
        tools = JavaTools(bootstrap)
    except PeerMissing as problem:
        cannot_run(problem)
    try:
        yield tools
    finally:
        tools.close()


class Moves:
    """Has the tool move the one partition of a topic."""

    def __init__(self, tools: JavaTools, bootstrap: str, path: Path) -> None:
        self._tools = tools
        self.bootstrap = bootstrap
        self._plan = path / "plan.json"

    def fill(self, size_bytes: int, *, assignments: dict[int, list[int]] | None = None) -> None:
        with klamm.Admin(self.bootstrap) as admin:
            admin.create_topic("moved", None if assignments else 1, assignments=assignments)
        with klamm.Producer(self.bootstrap, acks="all") as producer:
            for _ in range(size_bytes // 20_000):
                producer.send("moved", os.urandom(20_000))

    def begin(self, *options: str, **target: list[object]) -> None:
        partition = {"topic": "moved", "partition": 0, **target}
        self._plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        self._run("--execute", *options)

    def verify(self) -> str:
        return self._run("--verify")

    def _run(self, *arguments: str) -> str:
        return self._tools.run(
            "reassign-partitions",
            *("--bootstrap-server", "{bootstrap}", "--reassignment-json-file", str(self._plan)),
            *arguments,
        )


@pytest.mark.long
def test_a_throttled_reassignment_takes_its_time(tmp_path: Path) -> None:
    cluster = Cluster(2, as_processes=True)
    with cluster, java_tools(cluster.bootstrap) as tools, klamm.Admin(cluster.bootstrap) as admin:
        moves = Moves(tools, cluster.bootstrap, tmp_path)
        moves.fill(SIZE_BYTES, assignments={0: [1]})

        def replicas() -> list[int]:
            (partition,) = admin.describe_topic("moved").partitions
            return list(partition.replicas)

        def seconds_of(move: Callable[[], None], target: list[int]) -> float:
            """From when the new replica is there until it has caught up; the tool itself may take longer."""
            before, seen = replicas(), []

            def watch() -> None:
                wait_until(lambda: replicas() != before, "the reassignment begins", 60)
                seen.append(time.monotonic())
                wait_until(lambda: replicas() == target, f"the replicas are {target}", 60)
                seen.append(time.monotonic())

            watching = threading.Thread(target=watch)
            watching.start()
            move()
            watching.join()
            begun, complete = seen
            return complete - begun

        throttled_s = seconds_of(lambda: moves.begin("--throttle", str(RATE_BYTES), replicas=[2]), [2])
        settings = admin.describe_config(klamm.ConfigResource.topic("moved"))
        assert settings["leader.replication.throttled.replicas"].value == "0:1"
        assert settings["follower.replication.throttled.replicas"].value == "0:2"
        assert throttled_s > 0.7 * SIZE_BYTES / RATE_BYTES
        assert "Clearing topic-level throttles" in moves.verify()
        assert seconds_of(lambda: moves.begin(replicas=[1]), [1]) < throttled_s / 2


@pytest.mark.long
def test_the_tool_moves_a_replica_to_another_directory(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    with Broker({"log.dirs": f"{first},{second}"}) as broker, java_tools(broker.bootstrap) as tools:
        moves = Moves(tools, broker.bootstrap, tmp_path)
        moves.fill(4_000_000)
        begun = time.monotonic()
        moves.begin("--replica-alter-log-dirs-throttle", "1000000", replicas=[1], log_dirs=[second])
        assert "is still in progress" in moves.verify()
        wait_until(lambda: "moved-0" in os.listdir(second), "the replica has moved", 60)
        assert time.monotonic() - begun > 2, "4 MB at 1 MB/s"
        assert "completed successfully" in moves.verify()
        wait_until(lambda: not any("moved" in name for name in os.listdir(first)), "the old files are gone")
