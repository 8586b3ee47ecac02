"""What `klamm.testing.Cluster` promises to users' tests, with brokers in threads and in processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.testing import Cluster
from tests.descriptors import open_below
from tests.waiting import wait_until

TOPIC = "kept"
PATIENCE_S = 60.0
ALL = [1, 2, 3]


class Scene:
    """A cluster with a topic of one partition and three replicas, and clients."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = klamm.Admin(cluster.bootstrap)
        self.producer = klamm.Producer(cluster.bootstrap, acks="all")
        self.admin.create_topic(TOPIC, 1, 3, timeout=PATIENCE_S)
        self.wait_for_isr(ALL)

    def close(self) -> None:
        self.producer.close()
        self.admin.close()

    def produce(self) -> int:
        """The offset of one more record, once all in-sync replicas have it."""
        return self.producer.send(TOPIC, b"record").result(PATIENCE_S).offset

    def leader(self) -> int:
        """The leader, once there is one."""
        return wait_until(
            lambda: self.admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions[0].leader,
            "there is a leader",
            PATIENCE_S,
        )

    def follower(self) -> int:
        """A follower that is not the controller."""
        others = {self.leader(), self.admin.describe_cluster(timeout=PATIENCE_S).controller_id}
        return next(broker_id for broker_id in ALL if broker_id not in others)

    def in_sync(self) -> list[int]:
        (partition,) = self.admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions
        return sorted(partition.in_sync_replicas)

    def wait_for_isr(self, expected: list[int]) -> None:
        wait_until(
            lambda: self.in_sync() == expected,
            lambda: f"in sync are {expected}, not {self.in_sync()}",
            PATIENCE_S,
        )


def without(broker_id: int) -> list[int]:
    return [each for each in ALL if each != broker_id]


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.long)],
)
def shared(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """One cluster for the tests below; each leaves it whole."""
    with Cluster(3, as_processes=request.param) as cluster:
        scene = Scene(cluster)
        yield scene
        scene.close()


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    yield shared
    shared.cluster.heal()
    shared.cluster.start()
    shared.wait_for_isr(ALL)


def test_all_brokers_are_told_to_clients(scene: Scene) -> None:
    cluster = scene.cluster
    described = scene.admin.describe_cluster(timeout=PATIENCE_S)
    assert {broker.broker_id: f"{broker.host}:{broker.port}" for broker in described.brokers} == {
        broker_id: cluster.address(broker_id) for broker_id in ALL
    }
    assert cluster.ids == cluster.running == ALL
    assert cluster.bootstrap == ",".join(cluster.address(broker_id) for broker_id in ALL)


def test_a_killed_leader_is_followed_and_comes_back_with_its_data(scene: Scene) -> None:
    offset = scene.produce()
    killed = scene.leader()
    address = scene.cluster.address(killed)
    scene.cluster.kill(killed)
    assert scene.cluster.running == without(killed)
    assert scene.produce() == offset + 1
    assert scene.in_sync() == without(killed)
    scene.cluster.restart(killed)
    assert scene.cluster.running == ALL and scene.cluster.address(killed) == address
    scene.wait_for_isr(ALL)


def test_a_broker_that_stops_hands_over_first(scene: Scene) -> None:
    offset = scene.produce()
    stopped = scene.leader()
    scene.cluster.stop_broker(stopped)
    assert scene.cluster.running == without(stopped)
    assert scene.leader() != stopped
    assert scene.produce() == offset + 1
    scene.cluster.start_broker(stopped)
    scene.wait_for_isr(ALL)
    scene.cluster.restart(stopped)
    scene.wait_for_isr(ALL)
    assert scene.produce() == offset + 2


@pytest.mark.long
def test_a_follower_that_cannot_reach_its_leader_leaves_the_isr_until_it_can(scene: Scene) -> None:
    offset = scene.produce()
    leader, follower = scene.leader(), scene.follower()
    scene.cluster.partition(leader, follower)
    sent = scene.producer.send(TOPIC, b"without the follower")
    scene.wait_for_isr(without(follower))
    assert sent.result(PATIENCE_S).offset == offset + 1
    scene.cluster.heal()
    scene.wait_for_isr(ALL)


@pytest.mark.parametrize("ways", ["both", "to the controller", "from the controller"])
@pytest.mark.long
def test_a_leader_that_is_cut_off_from_the_controller_parts_with_it(scene: Scene, ways: str) -> None:
    """By way of the third broker."""
    controller = scene.admin.describe_cluster(timeout=PATIENCE_S).controller_id
    leader, third = without(controller)
    topic = f"cut off {ways}".replace(" ", "-")
    scene.admin.create_topic(topic, assignments={0: [leader, controller, third]}, timeout=PATIENCE_S)
    assert scene.producer.send(topic, b"before").result(PATIENCE_S).offset == 0
    if ways != "from the controller":
        scene.cluster.cut(leader, controller)
    if ways != "to the controller":
        scene.cluster.cut(controller, leader)
    assert scene.producer.send(topic, b"meanwhile").result(PATIENCE_S).offset == 1
    scene.cluster.heal()
    wait_until(
        lambda: len(scene.admin.describe_topic(topic).partitions[0].in_sync_replicas) == len(ALL),
        "all are in sync again",
        PATIENCE_S,
    )


class Load:
    """Sends one record after the other in a thread, each once the one before it is acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        # A paused broker answers nothing: the producer notices it by the time-out of its requests.
        self._producer = klamm.Producer(cluster.bootstrap, acks="all", request_timeout_ms=1000)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acknowledged: list[bytes] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.close()

    def _send(self) -> None:
        while not self._stopping.is_set():
            value = b"of the load: %d" % len(self.acknowledged)
            self._producer.send(TOPIC, value).result(PATIENCE_S)
            self.acknowledged.append(value)

    def wait_for_more(self) -> None:
        wanted = len(self.acknowledged) + 20
        wait_until(lambda: len(self.acknowledged) >= wanted, "records are acknowledged", PATIENCE_S)


def test_another_broker_leads_while_the_leader_is_paused_and_no_acknowledged_record_is_lost(
    scene: Scene,
) -> None:
    offset = scene.produce()
    paused = scene.leader()
    with Load(scene.cluster) as load:
        load.wait_for_more()
        scene.cluster.pause(paused)
        # A client that has not met the paused broker: others wait for it until their requests time out.
        with klamm.Admin(scene.cluster.address(without(paused)[0])) as admin:
            wait_until(
                lambda: (
                    admin.describe_topic(TOPIC, timeout=PATIENCE_S).partitions[0].leader in without(paused)
                ),
                "another broker leads",
                PATIENCE_S,
            )
        load.wait_for_more()
        scene.cluster.resume(paused)
        scene.wait_for_isr(ALL)
        load.wait_for_more()
    with klamm.Consumer(scene.cluster.bootstrap, start="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek((TOPIC, 0), offset + 1)
        read: list[bytes] = []
        wait_until(
            lambda: (
                len(read) >= len(load.acknowledged)
                or read.extend(record.value for record in consumer.poll(timeout=0.1))
            ),
            lambda: f"{len(read)} of {len(load.acknowledged)} records are read",
            PATIENCE_S,
        )
    assert read == load.acknowledged


@pytest.mark.parametrize(
    "as_processes",
    [pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.long)],
)
def test_nothing_is_left_behind(as_processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Cluster(2, as_processes=as_processes) as cluster:
        addresses = cluster.bootstrap.split(",")
        assert list(tmp_path.iterdir()) == [cluster.data_dir]
        with klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 2, timeout=PATIENCE_S)
        cluster.pause(2)  # the end of the block waits for nobody who cannot answer
    assert list(tmp_path.iterdir()) == [] and open_below(tmp_path) == 0
    for address in addresses:
        host, _, port = address.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)


CLUSTERS_IN_TURN = """
import os, threading
import klamm
from klamm.testing import Cluster

for _ in range(2):
    for as_processes in (False, True):
        with Cluster(2, as_processes=as_processes) as cluster, klamm.Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", 1, 2, timeout=60)
            cluster.kill(2)
        try:
            with Cluster(2, {"num.partition": 3}, as_processes=as_processes):
                pass
        except Exception as error:
            assert "num.partitions" in str(error), error
    threads = sorted(each.name for each in threading.enumerate() if each.name.startswith("klamm-"))
    assert threads == [], threads
    try:
        raise AssertionError(f"a child is left: {os.waitpid(-1, os.WNOHANG)}")
    except ChildProcessError:
        pass
    print(len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.long
def test_no_descriptors_threads_and_processes_are_left() -> None:
    """In a process of its own, where nobody else opens and closes any."""
    done = subprocess.run(
        [sys.executable, "-c", CLUSTERS_IN_TURN], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second


def test_a_directory_that_was_given_is_kept_and_served_again(tmp_path: Path) -> None:
    with Cluster(2, data_dir=tmp_path) as cluster, klamm.Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, 1, 2, timeout=PATIENCE_S)
    with Cluster(2, data_dir=tmp_path) as cluster, klamm.Admin(cluster.bootstrap) as admin:
        assert TOPIC in admin.list_topics(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "as_processes",
    [pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.long)],
)
def test_a_cluster_that_cannot_start_says_why(
    as_processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(Exception, match=r"num\.partitions"),
        Cluster(2, {"num.partition": 3}, as_processes=as_processes),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_each_broker_has_its_rack() -> None:
    with (
        Cluster(2, racks=["cellar", "attic"]) as cluster,
        klamm.Admin(cluster.bootstrap) as admin,
    ):
        brokers = admin.describe_cluster(timeout=PATIENCE_S).brokers
        assert {one.broker_id: one.rack for one in brokers} == {1: "cellar", 2: "attic"}
    with pytest.raises(ValueError, match="1 racks are named for 2 brokers"):
        Cluster(2, racks=["cellar"])


def test_a_cluster_without_brokers_and_a_broker_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        Cluster(brokers=0)
    with Cluster(brokers=2) as cluster:
        for use in (cluster.kill, cluster.pause, cluster.restart, cluster.address):
            with pytest.raises(ValueError, match=r"there is no broker 9: the cluster has \[1, 2\]"):
                use(9)
        with pytest.raises(ValueError, match="there is no broker 9"):
            cluster.partition(1, 9)
        assert cluster.running == [1, 2]
