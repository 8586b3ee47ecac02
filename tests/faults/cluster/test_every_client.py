"""kill -9 of each broker of three in turn, under the load of four clients: librdkafka (confluent-kafka),
aiokafka, Kafka's Java client and our own.

The producers are idempotent, with acks=all, and each consumer is the only member of a group. No acknowledged
record is lost, none is there twice, and every client goes on by itself after each kill. The brokers are those
of `klamm up --brokers 3`, and three of `klamm broker` on a ZooKeeper, which `klamm up` does not take.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

import klamm
from klamm.client.errors import ClientError
from tests.cli.commands import Command, run_klamm, run_up
from tests.cli.test_up_brokers import addresses_of, free_run_of_ports, is_alive, status_of
from tests.coordination.engines import start_zookeeper
from tests.faults.cluster.clients import (
    READ_S,
    KlammWriter,
    LibrdkafkaWriter,
    Newest,
    WritingClient,
    read_everything,
)
from tests.faults.cluster.every_client import (
    PACE_S,
    PARTITIONS,
    TOPIC,
    AiokafkaReader,
    AiokafkaWriter,
    JavaReader,
    JavaWriter,
    KlammReader,
    LibrdkafkaReader,
    Reader,
)
from tests.faults.cluster.history import History, Outcome, Sent, Stored, anomalies, duplicates
from tests.faults.cluster.replicas import replica_anomalies
from tests.waiting import wait_until

SEED = int(os.environ.get("SEED", "1"))
BROKERS = (1, 2, 3)
SETTINGS = ("--set", "default.replication.factor=3", "--set", "min.insync.replicas=2")
HEAL_S = 60.0
CLIENT_START_S = 60.0
PAUSE_S = 3.0
"""Shorter than brokers' sessions: a pause alone must not move leaders."""


# ---- the brokers


class RunningBrokers(Protocol):
    addresses: list[str]

    def bring_back(self, broker_id: int) -> None:
        """Return when a broker that was killed serves again."""

    def stop(self) -> None:
        """Stop all brokers cleanly."""


class Up:
    """`klamm up`: it starts a broker that dies again by itself."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        port = free_run_of_ports(len(BROKERS))
        words = ("--brokers", "3", "--port", str(port), "--data-dir", "data", *SETTINGS)
        self._command = stack.enter_context(run_up(directory, *words))
        self.addresses = addresses_of(self._command)

    def bring_back(self, broker_id: int) -> None:
        self._command.wait_for_line(f"broker {broker_id} ended with SIGKILL")
        self._command.wait_for_line(f"broker {broker_id} listens on")

    def stop(self) -> None:
        assert self._command.stop(signal.SIGTERM) == 0, self._command


class OnZooKeeper:
    """Three times `klamm broker`, with the settings of `klamm up`; the test starts one that dies again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._url = f"zookeeper://{stack.enter_context(start_zookeeper()).hosts}/every-client"
        first = free_run_of_ports(len(BROKERS))
        self.addresses = [f"127.0.0.1:{first + number}" for number in range(len(BROKERS))]
        self._commands = {broker_id: self._start(broker_id) for broker_id in BROKERS}
        for broker_id in BROKERS:
            self._wait_until_it_serves(broker_id)

    def _start(self, broker_id: int) -> Command:
        words = (
            "broker",
            *("--id", str(broker_id), "--coordination", self._url, "--data-dir", f"data/broker-{broker_id}"),
            *("--listeners", f"PLAINTEXT://{self.addresses[broker_id - 1]}"),
            *SETTINGS,
        )
        return self._stack.enter_context(run_klamm(self._directory, *words))

    def _wait_until_it_serves(self, broker_id: int) -> None:
        self._commands[broker_id].wait_for_line(f"broker {broker_id} listens on")

    def bring_back(self, broker_id: int) -> None:
        assert self._commands[broker_id].wait() == -signal.SIGKILL
        self._commands[broker_id] = self._start(broker_id)
        self._wait_until_it_serves(broker_id)

    def stop(self) -> None:
        for command in self._commands.values():
            assert command.stop(signal.SIGTERM) == 0, command


# ---- the load and its check


class Load:
    def __init__(self, bootstrap: str, directory: Path) -> None:
        place = (TOPIC, PARTITIONS, SEED)
        self.writers: list[WritingClient] = [
            JavaWriter(bootstrap, directory, *place),
            AiokafkaWriter(bootstrap, *place),
            # With more than one request in flight it may write a record twice by itself.
            LibrdkafkaWriter(bootstrap, "0", *place, in_flight=1),
            KlammWriter(bootstrap, "0", *place),
        ]
        self.readers: list[Reader] = [
            kind(bootstrap, directory) for kind in (JavaReader, AiokafkaReader, LibrdkafkaReader, KlammReader)
        ]

    def start(self) -> None:
        for writer in self.writers:
            writer.pace_s = PACE_S
        for client in (*self.writers, *self.readers):
            client.start()
        self.wait_until_all_go_on(CLIENT_START_S)

    def stop(self) -> None:
        """Stop all clients; after a failure, what is on the way is left to itself."""
        for client in (*self.writers, *self.readers):
            client.stop()
            if isinstance(client, JavaWriter | JavaReader):
                client.tool.kill()

    def wait_until_all_go_on(self, patience_s: float) -> None:
        """Until every producer has an acknowledgement from every partition for a record that it sent after
        this call, and every consumer was handed a record from every partition that was acknowledged after it.
        """
        begun_s = time.monotonic()
        nothing = Newest(0.0, 0.0, -1)
        ends = {
            index: max(writer.newest.get(index, nothing).offset for writer in self.writers)
            for index in range(PARTITIONS)
        }

        def those_that_stand() -> list[str]:
            stuck = [
                f"{writer.name} producer, partition {index}"
                for writer in self.writers
                for index in range(PARTITIONS)
                if writer.newest.get(index, nothing).sent_s <= begun_s
            ]
            return stuck or [
                f"{reader.name} consumer, partition {index} ({reader.failure or 'no error'})"
                for reader in self.readers
                for index in range(PARTITIONS)
                if reader.reached[index] <= ends[index]
            ]

        wait_until(
            lambda: not those_that_stand(),
            lambda: f"all clients go on: {those_that_stand()}",
            patience_s,
        )

    def finish(self, bootstrap: str) -> History:
        sent = [record for writer in self.writers for record in writer.finish()]
        stored = read_everything(bootstrap, TOPIC, PARTITIONS)
        wanted = {(record.place, record.offset) for record in stored}
        for reader in self.readers:
            wait_until(
                lambda reader=reader: wanted <= reader.handed,  # type: ignore[misc]
                lambda reader=reader: f"{reader.name} is handed {len(wanted - reader.handed)} more",  # type: ignore[misc]
                READ_S,
            )
        seen = [record for reader in self.readers for record in reader.finish()]
        return History(sent, seen, stored)


def all_anomalies(history: History) -> list[str]:
    """Also duplicates: every producer here is idempotent."""
    twice = [f"duplicate: {value!r} is at {places}" for value, places in duplicates(history.stored)]
    return anomalies(history) + twice


# ---- the tests


def wait_until_healed(directory: Path, admin: klamm.Admin, brokers: RunningBrokers) -> dict[int, int]:
    """Returns the process ids of the brokers."""

    def in_sync_counts() -> list[int]:
        try:
            partitions = admin.describe_topic(TOPIC, timeout=30).partitions
        except ClientError:
            return []
        return [len(each.in_sync_replicas) for each in partitions]

    def process_ids() -> dict[int, int]:
        seen = status_of(directory, brokers.addresses[0])
        if len(seen["brokers"]) < len(BROKERS) or seen["under_replicated"] or seen["offline"]:
            return {}
        return {broker["id"]: broker["pid"] for broker in seen["brokers"]}

    wait_until(
        lambda: in_sync_counts() == [len(BROKERS)] * PARTITIONS,
        lambda: f"all replicas of {TOPIC} are in sync: {in_sync_counts()}",
        HEAL_S,
    )
    return wait_until(process_ids, "`klamm cluster status` finds nothing amiss", HEAL_S)


def kill(broker_id: int, process_ids: dict[int, int], data: Path, admin: klamm.Admin) -> None:
    """kill -9 of a broker that has records which no other broker has: the others are paused just before.

    Without the pause, a leader that acknowledges too early would hardly be noticed: followers are quick. If
    leaders moved just before the pause, the broker gets no records for what it led: then the others go on for
    a moment, and the leaders are asked for again.
    """
    others = [process_id for other, process_id in process_ids.items() if other != broker_id]

    def paused_and_killed() -> bool:
        partitions = admin.describe_topic(TOPIC, timeout=30).partitions
        led = [
            data / f"broker-{broker_id}" / f"{TOPIC}-{each.partition}"
            for each in partitions
            if each.leader == broker_id
        ]
        try:
            for process_id in others:
                os.kill(process_id, signal.SIGSTOP)
            before = sizes_of(led)
            try:
                wait_until(
                    lambda: all(new > old for new, old in zip(sizes_of(led), before, strict=True)),
                    f"broker {broker_id} is sent records for the partitions that it leads",
                    PAUSE_S,
                )
            except AssertionError:
                return False
            os.kill(process_ids[broker_id], signal.SIGKILL)
            wait_until(lambda: not is_alive(process_ids[broker_id]), f"broker {broker_id} is dead")
            return True
        finally:
            for process_id in others:
                os.kill(process_id, signal.SIGCONT)

    wait_until(paused_and_killed, f"broker {broker_id} is sent records for all that it leads", HEAL_S)


def sizes_of(partitions: list[Path]) -> list[int]:
    return [sum(log.stat().st_size for log in each.glob("*.log")) for each in partitions]


@contextmanager
def loaded(brokers: RunningBrokers, directory: Path) -> Iterator[Load]:
    load = Load(",".join(brokers.addresses), directory)
    try:
        load.start()
        yield load
    finally:
        load.stop()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("start", [Up, OnZooKeeper], ids=["klamm up", "ZooKeeper"])
def test_every_client_goes_on_when_any_broker_is_killed(
    start: Callable[[Path, ExitStack], RunningBrokers], tmp_path: Path
) -> None:
    order = Random(SEED).sample(BROKERS, len(BROKERS))
    print(f"SEED={SEED}: the brokers are killed in the order {order}")
    with ExitStack() as stack:
        brokers = start(tmp_path, stack)
        bootstrap = ",".join(brokers.addresses)
        admin = stack.enter_context(klamm.Admin(bootstrap))
        # Replicas and min.insync.replicas are those of the brokers' settings.
        admin.create_topic(TOPIC, PARTITIONS, timeout=HEAL_S)
        load = stack.enter_context(loaded(brokers, tmp_path))
        for broker_id in order:
            process_ids = wait_until_healed(tmp_path, admin, brokers)
            kill(broker_id, process_ids, tmp_path / "data", admin)
            began_s = time.monotonic()
            load.wait_until_all_go_on(HEAL_S)
            print(f"after the kill of broker {broker_id} all go on in {time.monotonic() - began_s:.1f} s")
            brokers.bring_back(broker_id)
        wait_until_healed(tmp_path, admin, brokers)
        load.wait_until_all_go_on(HEAL_S)
        history = load.finish(bootstrap)
        for writer in load.writers:
            print(
                f"{writer.name}: {writer.acknowledged_count} records acknowledged, "
                f"at most {writer.longest_gap_s:.1f} s without one from some partition"
            )
        brokers.stop()
        found = all_anomalies(history)
        data = {broker_id: tmp_path / "data" / f"broker-{broker_id}" for broker_id in BROKERS}
        found += replica_anomalies(data, TOPIC, PARTITIONS)
        assert not found, f"SEED={SEED}, killed in the order {order}:\n" + "\n".join(found)
        failed = [record for record in history.sent if record.outcome is Outcome.UNKNOWN]
        assert not failed, (
            f"SEED={SEED}, killed in the order {order}: {len(failed)} sends failed: {failed[:3]}"
        )


def test_the_check_finds_a_record_that_is_missing_and_one_that_is_there_twice() -> None:
    place = (TOPIC, 0)
    sent = [Sent("a", place, b"%d" % number, Outcome.ACKNOWLEDGED, number) for number in range(3)]
    stored = [Stored(place, number, b"%d" % number) for number in range(3)]
    assert all_anomalies(History(sent, [], stored)) == []
    (lost,) = all_anomalies(History(sent, [], stored[:2]))
    assert lost.startswith("lost write: b'2'")
    (twice,) = all_anomalies(History(sent, [], [*stored, Stored(place, 3, b"1")]))
    assert twice.startswith("duplicate: b'1'")
