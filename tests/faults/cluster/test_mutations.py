"""A cluster of real processes loses records when it breaks a rule of replication, and none when it keeps it.

One scenario for each rule, made for the fault that the rule prevents. Brokers that break a rule are started
with `startup/sitecustomize.py`. Brokers 1, 2 and 3 have the replicas, and broker 4 is the controller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.client.admin.types import NewTopic
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.testing.cluster import Cluster
from klamm.testing.wire import WireConnection
from tests.faults.cluster.clients import read_everything
from tests.waiting import wait_until

TOPIC = "kept"
LEADER, SECOND, THIRD = REPLICAS = (1, 2, 3)
CONTROLLER = 4
STARTUP = Path(__file__).with_name("startup")
PATIENCE_S = 90.0
NO_LEADER = -1
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "60000",
    # What followers know of the high watermark stays behind: nothing else tells them.
    "replica.fetch.wait.max.ms": "5000",
}

SETTINGS_OF_RULES = {
    # The second replica is to leave the ISR, and on a busy machine not the third as well.
    "8": {"replica.lag.time.max.ms": "8000"},
    # The controller that hangs is not to hear of the brokers that stop, or it elects the second one.
    "16": {"controlled.shutdown.enable": "false"},
}


class Stage:
    """Four brokers, and a topic of one partition."""

    def __init__(self, cluster: Cluster, held_back: Path) -> None:
        self.cluster = cluster
        self._held_back = held_back
        self.acknowledged: list[bytes] = []
        with klamm.Admin(cluster.bootstrap) as admin:
            wait_until(
                lambda: len(admin.describe_cluster().brokers) == 4, "all brokers are there", PATIENCE_S
            )
            assert admin.describe_cluster().controller_id == CONTROLLER
            topic = NewTopic(TOPIC, assignments={0: REPLICAS}, configs={"min.insync.replicas": 2})
            admin.create_topics([topic], timeout=PATIENCE_S)
        self.wait_for_isr(*REPLICAS)

    def write(self, count: int = 20) -> None:
        """Records that are acknowledged."""
        values = [b"record %d" % (len(self.acknowledged) + number) for number in range(count)]
        with klamm.Producer(self.cluster.bootstrap, acks="all") as producer:
            for delivery in [producer.send(TOPIC, value) for value in values]:
                delivery.result(PATIENCE_S)
        self.acknowledged += values

    def hold_back(self, broker_id: int) -> None:
        (self._held_back / f"held-back-{broker_id}").touch()

    def let_go(self, broker_id: int) -> None:
        (self._held_back / f"held-back-{broker_id}").unlink()

    def deafen(self, broker_id: int) -> None:
        """Let nothing that the controller says reach the broker."""
        (self._held_back / f"deaf-{broker_id}").touch()

    def wait_for_attempts(self, broker_id: int, count: int) -> None:
        """Until the broker was handed records that it may not append, so often since it was held back."""
        attempts = self._held_back / f"attempts-{broker_id}"
        before = attempts.stat().st_size if attempts.exists() else 0
        wait_until(
            lambda: attempts.exists() and attempts.stat().st_size >= before + count,
            f"broker {broker_id} fetches",
            PATIENCE_S,
        )

    def state(self) -> tuple[int, list[int]]:
        """The leader and the ISR, as the controller knows them."""
        with WireConnection(self.cluster.address(CONTROLLER)) as connection:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            (partition,) = connection.call(request).topics[0].partitions
            return partition.leader_id, sorted(partition.isr_nodes)

    def wait_for_isr(self, *isr: int) -> None:
        wait_until(
            lambda: self.state()[1] == sorted(isr), lambda: f"the ISR is {isr}: {self.state()}", PATIENCE_S
        )

    def wait_for_leader(self, leader: int) -> None:
        wait_until(lambda: self.state()[0] == leader, lambda: f"{leader} leads: {self.state()}", PATIENCE_S)

    def output(self, broker_id: int) -> str:
        return (self.cluster.data_dir / f"broker-{broker_id}.log").read_text()

    def leave_alone(self, broker_id: int) -> None:
        """Kill the other replicas, and wait until the controller has drawn its conclusion."""
        others = [each for each in REPLICAS if each != broker_id and each in self.cluster.running]
        for other in others:
            self.cluster.kill(other)
        wait_until(
            lambda: self.state()[0] in (broker_id, NO_LEADER),
            lambda: f"the leader is gone: {self.state()}",
            PATIENCE_S,
        )

    def lost(self) -> list[bytes]:
        """Acknowledged records that cannot be read when all brokers are back."""
        for hindrance in self._held_back.iterdir():
            hindrance.unlink()
        for broker_id in REPLICAS:
            if broker_id not in self.cluster.running:
                self.cluster.start_broker(broker_id)
        self.wait_for_isr(*REPLICAS)
        stored = {record.value for record in read_everything(self.cluster.bootstrap, TOPIC, 1)}
        return [value for value in self.acknowledged if value not in stored]


def stale_replica(stage: Stage) -> None:
    """The second replica is back and has nothing of what it missed, when the others die."""
    stage.cluster.kill(SECOND)
    stage.wait_for_isr(LEADER, THIRD)
    stage.write()
    stage.hold_back(SECOND)
    stage.cluster.start_broker(SECOND)
    stage.wait_for_attempts(SECOND, 3)
    stage.leave_alone(SECOND)


def lost_answer(stage: Stage) -> None:
    """The leader does not hear that the second replica is in the ISR again, and the others die."""
    stage.hold_back(SECOND)
    with klamm.Producer(stage.cluster.bootstrap, acks=1) as producer:
        producer.send(TOPIC, b"behind").result(PATIENCE_S)
    stage.wait_for_isr(LEADER, THIRD)
    stage.write()
    stage.deafen(LEADER)
    stage.let_go(SECOND)
    stage.wait_for_isr(*REPLICAS)
    stage.hold_back(SECOND)
    value = b"record %d" % len(stage.acknowledged)
    with klamm.Producer(stage.cluster.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
        delivery = producer.send(TOPIC, value)
        wait_until(
            lambda: "the answer is lost" in stage.output(LEADER),
            "the leader knows that it has no answer",
            PATIENCE_S,
        )
        stage.wait_for_attempts(SECOND, 3)
        if delivery.done() and delivery.exception() is None:
            stage.acknowledged.append(value)
        stage.leave_alone(SECOND)
        producer.close(0)


def rapid_elections(stage: Stage) -> None:
    """The third replica follows a new leader, which dies before it is fetched from."""
    stage.hold_back(THIRD)
    stage.cluster.kill(LEADER)
    stage.wait_for_leader(SECOND)
    with klamm.Producer(stage.cluster.bootstrap, acks=1) as producer:
        producer.send(TOPIC, b"of the second leader").result(PATIENCE_S)
    stage.wait_for_attempts(THIRD, 1)
    stage.cluster.kill(SECOND)
    stage.wait_for_leader(THIRD)


def unclean_restart(stage: Stage) -> None:
    """All replicas restart while the controller hangs. The second has lost its records with the power, the
    others were stopped cleanly; then the others die."""
    stage.cluster.pause(CONTROLLER)
    stage.cluster.kill(SECOND)
    for segment in (stage.cluster.data_dir / f"broker-{SECOND}" / f"{TOPIC}-0").glob("*.log"):
        segment.write_bytes(b"")
    stage.hold_back(SECOND)
    for broker_id in (LEADER, THIRD):
        stage.cluster.stop_broker(broker_id)
    starting = [threading.Thread(target=stage.cluster.start_broker, args=(each,)) for each in REPLICAS]
    for thread in starting:
        thread.start()
    wait_until(
        lambda: all(stage.output(each).count("is registered in broker epoch") == 2 for each in REPLICAS),
        "all replicas are registered again",
        PATIENCE_S,
    )
    stage.cluster.resume(CONTROLLER)
    for thread in starting:
        thread.join()
    stage.wait_for_attempts(SECOND, 3)
    stage.leave_alone(SECOND)


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "6": stale_replica,
    "8": lost_answer,
    "10": rapid_elections,
    "16": unclean_restart,
}


def lost_records(rule: str, directory: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> list[bytes]:
    held_back = directory / "held-back"
    held_back.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(STARTUP))
    monkeypatch.setenv("FAULTS_HELD_BACK", str(held_back))
    monkeypatch.setenv("FAULTS_BROKEN_RULE", broken)
    settings = SETTINGS | SETTINGS_OF_RULES.get(rule, {})
    cluster = Cluster(4, settings, as_processes=True, data_dir=directory / "cluster")
    cluster.start_broker(CONTROLLER)
    with cluster:
        stage = Stage(cluster, held_back)
        stage.write()
        SCENARIOS[rule](stage)
        return stage.lost()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", SCENARIOS)
def test_a_broken_rule_loses_records(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost_records(rule, tmp_path, monkeypatch, broken=rule)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", SCENARIOS)
def test_a_rule_that_is_kept_loses_none(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lost_records(rule, tmp_path, monkeypatch, broken="")
