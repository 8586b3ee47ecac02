"""`klamm doctor` as a user types it, with everything broken that it is to find."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.client.admin.wire_member import WireMember
from tests.client.topics import unique
from tests.waiting import wait_until

import klamm
from klamm.client.admin.types import NewTopic
from klamm.client.results import TopicPartition
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.project import Project
from klamm.pipelines.state import State
from klamm.pipelines.status import write_status
from klamm.testing import Broker, Cluster

Seen = list[tuple[str, str, str]]
"""Check, severity and place of findings."""


def findings(shell: Shell, *words: str) -> tuple[Seen, list[str]]:
    done = shell("doctor", "--pause", "0.5", "-o", "json", *words)
    found = json.loads(done.stdout)
    assert done.returncode == (1 if found else 0), done
    assert all(each["what"] and each["advice"] for each in found)
    return [(each["check"], each["severity"], each["where"]) for each in found], [
        each["what"] for each in found
    ]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def on(broker: Broker, tmp_path: Path) -> Shell:
    return Shell(tmp_path, broker.bootstrap)


@pytest.fixture
def admin(broker: Broker) -> Iterator[klamm.Admin]:
    with klamm.Admin(broker.bootstrap) as made:
        yield made


@contextmanager
def growing(bootstrap: str, topic: str) -> Iterator[None]:
    """A topic that gets records all the time."""
    done = threading.Event()

    def produce() -> None:
        with klamm.Producer(bootstrap) as producer:
            while not done.is_set():
                producer.send(topic, b"value").result()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_all_is_well(tmp_path: Path) -> None:
    with Broker() as broker:
        on = Shell(tmp_path, broker.bootstrap)
        with klamm.Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", 2)
            admin.alter_group_offsets("billing", {("orders", 0): 0})
        done = on("doctor", "--pause", "0.1")
        assert (done.returncode, done.stdout) == (0, ""), done
        assert done.stderr.splitlines() == [
            "klamm: looking at groups again in 0.1 s",
            "klamm: all is well: looked at 1 broker, 2 topics, 1 group, 0 pipelines",
        ]
        assert findings(on) == ([], [])


def test_nobody_answers(tmp_path: Path) -> None:
    seen, (what,) = findings(Shell(tmp_path, "127.0.0.1:1"))
    assert seen == [("bootstrap", "error", "127.0.0.1:1")] and "refused" in what


def test_an_address_that_is_advertised_and_closed_or_of_another_cluster(
    tmp_path: Path, broker: Broker
) -> None:
    real = f"127.0.0.1:{free_port()}"
    listens = {"listeners": f"PLAINTEXT://{real}"}
    with Broker({**listens, "advertised.listeners": "PLAINTEXT://127.0.0.1:1"}):
        seen, whats = findings(Shell(tmp_path, real))
        assert seen[0] == ("advertised listener", "error", "broker 1")
        assert "broker 1 advertises 127.0.0.1:1, and does not answer there" in whats[0]
        text = Shell(tmp_path, real)("doctor", "--pause", "0.1").stdout
        assert "error: broker 1 advertises 127.0.0.1:1" in text
        assert "  → If broker 1 runs, set its advertised.listeners" in text
    with Broker({**listens, "advertised.listeners": f"PLAINTEXT://{broker.bootstrap}"}):
        seen, whats = findings(Shell(tmp_path, real))
        assert seen[0] == ("advertised listener", "error", "broker 1")
        assert f"advertises {broker.bootstrap}, where another cluster answers" in whats[0]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_a_broker_that_is_gone_takes_partitions_replicas_and_coordinators_with_it(tmp_path: Path) -> None:
    config = {"offsets.topic.replication.factor": 1, "min.insync.replicas": 2}
    with Cluster(2, config) as cluster:
        with klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topics(
                [NewTopic("alone", assignments={0: [2]}), NewTopic("both", assignments={0: [1, 2]})]
            )
            admin.list_group_offsets("anyone")  # it has the topic of offsets made
        cluster.kill(2)
        left = cluster.broker(1).node.cluster

        def is_known() -> bool:
            both = left.image.topics["both"].partitions
            return list(left.image.brokers) == [1] and both[0].isr == (1,)

        wait_until(is_known, "broker 1 knows that broker 2 is gone")
        seen, whats = findings(Shell(tmp_path, cluster.address(1)))
    assert sorted(each[:2] for each in seen) == [
        ("coordinator", "error"),
        ("offline partition", "error"),
        ("replica", "error"),
        ("replica", "warning"),
    ]
    assert any("partitions of __consumer_offsets have no leader" in each for each in whats)
    assert "broker 2 is gone, and out of sync in" in whats[-1]
    assert any("fewer replicas in sync than min.insync.replicas" in each for each in whats)


@pytest.mark.long
def test_a_controller_that_hangs(tmp_path: Path) -> None:
    # Nobody takes over while the doctor looks.
    with Cluster(2, {"broker.session.timeout.ms": 120_000}) as cluster:
        with klamm.Admin(cluster.bootstrap) as admin:
            controller = admin.describe_cluster().controller_id
        assert controller is not None
        cluster.pause(controller)
        try:
            seen, _ = findings(Shell(tmp_path, cluster.address(3 - controller)))
        finally:
            cluster.resume(controller)
    where = f"broker {controller}"
    assert {("advertised listener", "error", where), ("controller", "error", where)} <= set(seen)


def test_a_disk_that_is_too_full(on: Shell, broker: Broker) -> None:
    seen, whats = findings(on, "--disk", "0")
    (index,) = [number for number, each in enumerate(seen) if each[0] == "disk"]
    assert seen[index][2] == f"broker 1, {broker.data_dir}" and "% full" in whats[index]


def test_groups_that_do_not_move(on: Shell, admin: klamm.Admin, broker: Broker) -> None:
    topic = unique("topic")
    admin.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    stuck, silent, left, fine = (unique(name) for name in ("stuck", "silent", "left", "fine"))
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"value").result()
    for group in (stuck, left):
        admin.alter_group_offsets(group, {partition: 0})
    members = [WireMember(broker.bootstrap, group, partition) for group in (stuck, silent, fine)]
    try:
        admin.remove_members(fine)
        with growing(broker.bootstrap, topic):
            seen, whats = findings(on)
        assert seen == [
            ("group", "error", f"group {stuck}"),
            ("group", "warning", f"group {left}"),
            ("group", "warning", f"group {silent}"),
        ]
        assert f"group {stuck} is stuck at {topic}-0" in whats[0]
        assert f"group {left} has no members, and its lag grows" in whats[1]
        assert f"group {silent} commits nothing of {topic}-0" in whats[2]
    finally:
        for member in members:
            member.close()
        for group in (stuck, silent):
            admin.remove_members(group)
        admin.delete_groups([stuck, silent, left, fine])


def test_a_group_that_rebalances_for_long(on: Shell, admin: klamm.Admin, broker: Broker) -> None:
    topic, group = unique("topic"), unique("waiting")
    admin.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    deaf = WireMember(broker.bootstrap, group, partition)
    others: list[WireMember] = []
    joining = threading.Thread(target=lambda: others.append(WireMember(broker.bootstrap, group, partition)))
    joining.start()
    try:
        wait_until(
            lambda: admin.describe_group(group).state == "PreparingRebalance", "the group waits for a member"
        )
        seen, whats = findings(on)
        assert seen == [("group", "error", f"group {group}")]
        assert "has been rebalancing for 0.5 s or more" in whats[0]
    finally:
        admin.remove_members(group, [deaf.member_id])
        joining.join()
        for member in (deaf, *others):
            member.close()


def test_a_pipeline_that_has_failed(on: Shell) -> None:
    (on.folder / "klamm.toml").write_text(f'[project]\nname = "shop"\nbootstrap = "{on.bootstrap}"\n')
    (on.folder / "pipelines").mkdir()
    status = PipelineStatus("totals", "table", state="failed", error="the column amount is missing")
    write_status(State(Project.load(on.folder)), status)
    seen, whats = findings(on)
    assert seen == [("pipeline", "error", "pipeline totals")]
    assert whats == ["pipeline totals has failed: the column amount is missing"]


def test_records_from_the_future(on: Shell, admin: klamm.Admin, broker: Broker) -> None:
    topic = unique("topic")
    admin.create_topic(topic, 1)
    with klamm.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"value", timestamp=int(time.time() * 1000) + 50 * 60_000).result()
    try:
        seen, whats = findings(on)
        assert seen == [("clock", "warning", f"{topic}-0")]
        assert "up to 50 minutes ahead" in whats[0]
    finally:
        admin.delete_topic(topic)
