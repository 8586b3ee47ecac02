"""A cluster of real processes under load, while all that can fail does.

Whatever happens, no anomaly is found, and when all is healed, all replicas are in sync again. `make faults
MINUTES=n` runs for long, with faults chosen by a seed (docs/FAULTS.md). A failure prints the seed and what
was done to the cluster, and keeps the data directory with the brokers' output.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from tests.coordination.engines import start_zookeeper
from tests.faults.cluster.kinds import CUTS_FROM_ZOOKEEPER, FAULTS, VICTIMS, do, do_any, kinds_for
from tests.faults.cluster.report import Report
from tests.faults.cluster.scene import ALL_BROKERS, Scene, run
from tests.faults.cluster.stores import ZooKeeperServer

SEED = int(os.environ.get("SEED", "1"))
MINUTES = float(os.environ.get("MINUTES", "5"))
REPORT = os.environ.get("REPORT", "")
SHARE_OF_ZOOKEEPER = 1 / 3


def for_minutes(scene: Scene, minutes: float) -> None:
    deadline = time.monotonic() + minutes * 60
    while time.monotonic() < deadline:
        do_any(scene)


def publish(report: Report) -> None:
    """Print the report, and add it to the file REPORT."""
    text = report.as_markdown()
    print(f"\n{text}")
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(text + "\n")


@pytest.mark.timeout(600)
def test_the_leader_the_controller_and_a_follower_fail(tmp_path: Path) -> None:
    def faults(scene: Scene) -> None:
        do(scene, "kill -9", "leader")
        do(scene, "kill -9, damaged log tail", "controller")
        do(scene, "cut off, connections reset", "follower")

    run(tmp_path, SEED, faults)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_broker_is_cut_off_from_zookeeper_alone(tmp_path: Path) -> None:
    """The faults themselves look whether sessions are suspended and expire."""

    def faults(scene: Scene) -> None:
        def epochs() -> list[int | None]:
            return [store.epoch_of(broker_id) for broker_id in ALL_BROKERS]

        do(scene, "cut off from ZooKeeper, connections reset", "controller")
        before = epochs()  # on a busy machine the first cut, too, may outlast a session
        do(scene, "cut off from ZooKeeper until expired, silent", "leader")
        assert sum(now == old for now, old in zip(epochs(), before, strict=True)) == 2

    with start_zookeeper() as server, ZooKeeperServer(server, ALL_BROKERS) as store:
        run(tmp_path, SEED, faults, store)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_controller_that_leads_everything_is_cut_off_from_zookeeper_alone(tmp_path: Path) -> None:
    """Consumers that read only from it would wait as long as the cut lasts: it leads on in its own eyes."""

    def faults(scene: Scene) -> None:
        kind = "cut off from ZooKeeper until expired, connections reset"
        for _ in range(3):
            controller = scene.controller()
            scene.stop_all_but(controller)
            scene.do(kind, "controller", partial(FAULTS[kind], scene, controller))

    with start_zookeeper() as server, ZooKeeperServer(server, ALL_BROKERS) as store:
        run(tmp_path, SEED, faults, store)


@pytest.mark.faults
@pytest.mark.timeout(24 * 3600)
def test_faults_of_all_kinds(tmp_path: Path) -> None:
    publish(run(tmp_path, SEED, lambda scene: for_minutes(scene, MINUTES * (1 - SHARE_OF_ZOOKEEPER))))


@pytest.mark.faults
@pytest.mark.timeout(24 * 3600)
def test_faults_of_all_kinds_on_zookeeper(tmp_path: Path) -> None:
    with start_zookeeper() as server, ZooKeeperServer(server, ALL_BROKERS) as store:
        publish(run(tmp_path, SEED, lambda scene: for_minutes(scene, MINUTES * SHARE_OF_ZOOKEEPER), store))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_each_kind_to_each_victim(tmp_path: Path) -> None:
    def faults(scene: Scene) -> None:
        for kind in kinds_for(scene):
            for victim in VICTIMS if kind in FAULTS else [""]:
                do(scene, kind, victim)

    publish(run(tmp_path, SEED, faults, small_disks=ALL_BROKERS))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_each_cut_from_zookeeper_to_each_victim(tmp_path: Path) -> None:
    def faults(scene: Scene) -> None:
        for kind in CUTS_FROM_ZOOKEEPER:
            for victim in VICTIMS:
                do(scene, kind, victim)

    with start_zookeeper() as server, ZooKeeperServer(server, ALL_BROKERS) as store:
        publish(run(tmp_path, SEED, faults, store))
