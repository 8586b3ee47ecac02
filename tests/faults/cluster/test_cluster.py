"""A cluster of real processes under load, while brokers are killed, paused, stopped and cut off.

Whatever happens, the history of the clients has no anomaly, and when all is healed, all replicas are in sync
again. `make faults MINUTES=n` runs for long, with faults chosen by a seed. A failure prints the seed and what
was done to the cluster, and keeps the data directory.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import klamm
from klamm.client.admin.types import NewTopic
from klamm.client.errors import ClientError
from klamm.testing.cluster import Cluster
from tests.faults.cluster_load import ReadingClient, WritingClient, history_of, read_everything
from tests.faults.history import anomalies
from tests.waiting import wait_until

TOPIC = "faults"
PARTITIONS = 6
HEAL_S = 120.0
SEED = int(os.environ.get("SEED", "1"))
MINUTES = float(os.environ.get("MINUTES", "5"))


class Scene:
    """A cluster with clients at work."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.done: list[str] = []
        self.admin = klamm.Admin(cluster.bootstrap)
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": 2})], timeout=30)
        self.writing = [
            WritingClient(cluster.bootstrap, f"writer-{number}", TOPIC, PARTITIONS, seed)
            for number in range(2)
        ]
        self.reading = [ReadingClient(cluster.bootstrap, "reader-0", TOPIC, PARTITIONS)]
        for client in (*self.writing, *self.reading):
            client.start()
        self.wait_for_progress()

    def close(self) -> None:
        self.admin.close()

    def wait_for_progress(self) -> None:
        """Every producer goes on: more of its records are acknowledged."""
        before = [client.acknowledged_count for client in self.writing]
        wait_until(
            lambda: all(
                client.acknowledged_count > count + 20
                for client, count in zip(self.writing, before, strict=True)
            ),
            "producers go on",
            HEAL_S,
        )

    def leader(self) -> int:
        """The leader of some partition."""
        leaders = [each.leader for each in self._partitions() if each.leader is not None]
        return self.random.choice(leaders)

    def follower(self) -> int:
        partition = self.random.choice(self._partitions())
        return self.random.choice([each for each in partition.replicas if each != partition.leader])

    def controller(self) -> int:
        wait_until(
            lambda: self.admin.describe_cluster().controller_id is not None, "there is a controller", 30
        )
        controller = self.admin.describe_cluster().controller_id
        assert controller is not None
        return controller

    def _partitions(self) -> list[klamm.PartitionDescription]:
        return list(self.admin.describe_topic(TOPIC, timeout=30).partitions)

    def wait_until_healed(self) -> None:
        def is_healed() -> bool:
            try:
                partitions = self._partitions()
            except ClientError:
                return False
            return all(each.leader is not None and len(each.in_sync_replicas) == 3 for each in partitions)

        wait_until(is_healed, "all replicas are in sync", HEAL_S)

    def note(self, what: str) -> None:
        self.done.append(what)


def kill(scene: Scene, broker_id: int) -> None:
    scene.note(f"kill -9 of broker {broker_id}")
    scene.cluster.kill(broker_id)
    scene.wait_for_progress()
    scene.cluster.start_broker(broker_id)


def pause(scene: Scene, broker_id: int) -> None:
    scene.note(f"SIGSTOP of broker {broker_id}")
    scene.cluster.pause(broker_id)
    scene.wait_for_progress()
    scene.cluster.resume(broker_id)


def bounce(scene: Scene, broker_id: int) -> None:
    scene.note(f"clean restart of broker {broker_id}")
    scene.cluster.restart(broker_id)


def cut_off(scene: Scene, broker_id: int) -> None:
    others = [each for each in scene.cluster.ids if each != broker_id]
    scene.note(f"nothing passes between broker {broker_id} and the others")
    for other in others:
        scene.cluster.partition(broker_id, other)
    time.sleep(scene.random.uniform(0.5, 3.0))
    scene.cluster.heal()


def cut_one_way(scene: Scene, broker_id: int) -> None:
    other = scene.random.choice([each for each in scene.cluster.ids if each != broker_id])
    scene.note(f"nothing passes from broker {broker_id} to broker {other}")
    scene.cluster.cut(broker_id, other)
    time.sleep(scene.random.uniform(0.5, 3.0))
    scene.cluster.heal()


FAULTS: dict[str, Callable[[Scene, int], None]] = {
    "kill": kill,
    "pause": pause,
    "bounce": bounce,
    "cut off": cut_off,
    "cut one way": cut_one_way,
}
VICTIMS: dict[str, Callable[[Scene], int]] = {
    "leader": Scene.leader,
    "follower": Scene.follower,
    "controller": Scene.controller,
}


def run(directory: Path, seed: int, faults: Callable[[Scene], None]) -> None:
    """Do `faults` to a cluster under load, heal it, and check what the clients did and saw."""
    data = directory / "cluster"
    with Cluster(3, as_processes=True, data_dir=data) as cluster:
        scene = Scene(cluster, seed)
        try:
            faults(scene)
            cluster.heal()
            scene.wait_for_progress()
            scene.wait_until_healed()
            for client in scene.writing:
                client.finish()
            stored = read_everything(cluster.bootstrap, TOPIC, PARTITIONS)
            found = anomalies(history_of(scene.writing, scene.reading, stored), is_idempotent=True)
            assert not found, "\n".join(found)
        except BaseException as error:
            raise AssertionError(
                f"SEED={seed}; the cluster met: {', '.join(scene.done)}; data: {data}"
            ) from error
        finally:
            scene.close()
    shutil.rmtree(data)


@pytest.mark.timeout(600)
def test_the_leader_the_controller_and_a_follower_fail(tmp_path: Path) -> None:
    def faults(scene: Scene) -> None:
        kill(scene, scene.leader())
        scene.wait_until_healed()
        kill(scene, scene.controller())
        scene.wait_until_healed()
        cut_off(scene, scene.follower())

    run(tmp_path, SEED, faults)


@pytest.mark.faults
@pytest.mark.timeout(24 * 3600)
def test_faults_of_all_kinds(tmp_path: Path) -> None:
    deadline = time.monotonic() + MINUTES * 60

    def faults(scene: Scene) -> None:
        while time.monotonic() < deadline:
            name = scene.random.choice(sorted(FAULTS))
            victim = scene.random.choice(sorted(VICTIMS))
            FAULTS[name](scene, VICTIMS[victim](scene))
            scene.wait_until_healed()

    run(tmp_path, SEED, faults)
