"""A cluster of processes with clients at work, the faults done to it, and the check of all that is left."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import klamm
from klamm.client.admin.types import NewTopic
from klamm.client.errors import ClientError
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.testing.cluster import Cluster
from klamm.testing.wire import WireConnection
from tests.faults.cluster.clients import (
    KlammWriter,
    LibrdkafkaWriter,
    ReadingClient,
    WritingClient,
    history_of,
    read_everything,
)
from tests.faults.cluster.group import Group
from tests.faults.cluster.history import Stored, anomalies, duplicates
from tests.faults.cluster.observer import ANSWER_S, NO_LEADER, Observer
from tests.faults.cluster.replicas import replica_anomalies, who_wrote
from tests.faults.cluster.report import Fault, Report
from tests.faults.cluster.stores import SqliteFile, StoreControl
from tests.waiting import wait_until

BROKERS = 3
ALL_BROKERS = range(1, BROKERS + 1)
TOPIC = "faults"
PARTITIONS = 6
HEAL_S = 120.0
SMALL_DISK_BYTES = 192 * 1024 * 1024


class Scene:
    """`store` is where the brokers find one another. The disks of the brokers `small_disks` can be filled."""

    def __init__(self, cluster: Cluster, seed: int, store: StoreControl, small_disks: Sequence[int]) -> None:
        self.cluster = cluster
        self.small_disks = small_disks
        self.store = store
        self.seed = seed
        self.random = Random(seed)
        self.done: list[Fault] = []
        self.under_way = "nothing"
        self.began_s = time.monotonic()
        self.admin = klamm.Admin(cluster.bootstrap)
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": 2})], timeout=30)
        self.writing: list[WritingClient] = [
            LibrdkafkaWriter(cluster.bootstrap, "0", TOPIC, PARTITIONS, seed, in_flight=1),
            LibrdkafkaWriter(cluster.bootstrap, "1", TOPIC, PARTITIONS, seed, in_flight=5),
            KlammWriter(cluster.bootstrap, "0", TOPIC, PARTITIONS, seed),
        ]
        self.reading = [ReadingClient(cluster.bootstrap, "reader-0", TOPIC, PARTITIONS)]
        self.group = Group(cluster.bootstrap, "group", TOPIC)
        addresses = {broker_id: cluster.address(broker_id) for broker_id in cluster.ids}
        self.observer = Observer(addresses, TOPIC, PARTITIONS)
        for client in (*self.writing, *self.reading, self.group, self.observer):
            client.start()
        self.wait_for_progress()

    def close(self) -> None:
        for client in (*self.writing, *self.reading, self.group, self.observer):
            client.stop()
        self.admin.close()

    def data_of(self, broker_id: int) -> Path:
        return self.cluster.data_dir / f"broker-{broker_id}"

    # ---- what to wait for

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

    def wait_for_progress_everywhere(self) -> None:
        """Each partition acknowledges a record to every producer that was sent after now, and the group
        commits."""
        now = time.monotonic()
        wanted_commits = self.group.commit_count + 20

        def waiting() -> list[str]:
            producers = [
                f"{client.name} for partition {index}"
                for client in self.writing
                for index in range(PARTITIONS)
                if index not in client.newest or client.newest[index].sent_s < now
            ]
            return producers + ["the group"] * (self.group.commit_count < wanted_commits)

        wait_until(lambda: not waiting(), lambda: f"all clients go on, not {', '.join(waiting())}", HEAL_S)

    def wait_until_healed(self) -> None:
        """All brokers say so: one that the others took for dead may not know yet."""

        def is_healed() -> bool:
            try:
                answers = [self._metadata_of(broker_id) for broker_id in self.cluster.ids]
            except OSError:
                return False
            return len({answer.controller_id for answer in answers}) == 1 and all(
                each.leader_id != NO_LEADER and len(each.isr_nodes) == 3
                for answer in answers
                for each in answer.topics[0].partitions
            )

        wait_until(is_healed, "all replicas are in sync", HEAL_S)

    def _metadata_of(self, broker_id: int) -> MetadataResponse:
        topic = MetadataRequestTopic(name=TOPIC)
        with WireConnection(self.cluster.address(broker_id), timeout_s=ANSWER_S) as connection:
            return connection.call(MetadataRequest(topics=[topic], allow_auto_topic_creation=False))

    # ---- victims

    def leader(self) -> int:
        """The leader of some partition."""
        leaders = [each.leader for each in self._partitions() if each.leader is not None]
        return self.random.choice(leaders)

    def follower(self) -> int:
        partition = self.random.choice(self._partitions())
        return self.random.choice([each for each in partition.replicas if each != partition.leader])

    def controller(self) -> int:
        def found() -> int | None:
            with suppress(ClientError):
                return self.admin.describe_cluster().controller_id
            return None

        wait_until(lambda: found() is not None, "there is a controller", HEAL_S)
        controller = found()
        return self.leader() if controller is None else controller

    def coordinator(self) -> int:
        """The broker that coordinates the group."""
        wait_until(lambda: self.group.coordinator() is not None, "there is a coordinator", HEAL_S)
        coordinator = self.group.coordinator()
        return self.leader() if coordinator is None else coordinator

    def _partitions(self) -> list[klamm.PartitionDescription]:
        return list(self.admin.describe_topic(TOPIC, timeout=30).partitions)

    # ---- faults

    def do(self, kind: str, victim: str, work: Callable[[], None]) -> None:
        """Do something to the cluster and wait until it has healed."""
        self.under_way = f"{kind} ({victim})"
        began_s = time.monotonic()
        work()
        self.cluster.heal()
        self.wait_for_progress()
        self.wait_until_healed()
        self.done.append(Fault(kind, victim, began_s, time.monotonic()))

    def stop_all_but(self, broker_id: int) -> None:
        """Stop the other brokers and start them again: the one leads all partitions then."""

        def work() -> None:
            for other in set(self.cluster.ids) - {broker_id}:
                self.cluster.kill(other)
            wait_until(
                lambda: {each.leader for each in self._partitions()} == {broker_id},
                f"broker {broker_id} leads everything",
                HEAL_S,
            )
            for other in set(self.cluster.ids) - {broker_id}:
                self.cluster.start_broker(other)

        self.do("kill -9 of the others", f"all but broker {broker_id}", work)

    def story(self) -> str:
        return ", ".join([*(f"{fault.kind} ({fault.victim})" for fault in self.done), self.under_way])

    # ---- the end

    def finish(self) -> Report:
        """Heal, let the clients finish, stop the brokers, and look for anomalies in all that is left."""
        self.cluster.heal()
        self.wait_for_progress()
        self.wait_until_healed()
        minutes = (time.monotonic() - self.began_s) / 60
        for client in self.writing:
            client.finish()
        stored = read_everything(self.cluster.bootstrap, TOPIC, PARTITIONS)
        history = history_of(self.writing, self.reading, stored)
        found = anomalies(history)
        found += self.group.finish(stored)
        found += self.observer.finish()
        self.admin.close()
        self.cluster.stop()
        brokers = {broker_id: self.data_of(broker_id) for broker_id in self.cluster.ids}
        found += replica_anomalies(brokers, TOPIC, PARTITIONS)
        twice, sent_twice = self._duplicates(stored)
        found += twice
        counts = {
            "records acknowledged": sum(client.acknowledged_count for client in self.writing),
            "records in the logs": len(stored),
            "records read during the run": len(history.seen),
            "commits acknowledged": self.group.commit_count,
            "answers of brokers observed": self.observer.answer_count,
            "faults": len(self.done),
            "records that librdkafka sent again in a new producer epoch": sent_twice,
            "batches refused for their sequence": self._refusal_count(),
        }
        waits = [wait for client in self.writing for wait in client.waits]
        return Report(self.seed, self.store.name, minutes, self.done, waits, counts, found)

    def _duplicates(self, stored: Sequence[Stored]) -> tuple[list[str], int]:
        """Records that are there twice; and how many of those are the fault of their client alone."""
        tolerated = tuple(b"%s:" % client.name.encode() for client in self.writing if client.may_write_twice)
        found, sent_twice = [], 0
        for value, places in duplicates(stored):
            (topic, index), _ = places[0]
            writers = who_wrote(self.data_of(1), topic, index, [offset for _, offset in places])
            if value.startswith(tolerated) and len({writer[:2] for writer in writers}) == len(places):
                sent_twice += 1
            else:
                found.append(
                    f"duplicate: {value!r} is at {places}, written by (producer id, epoch, sequence) "
                    f"{writers}"
                )
        return found, sent_twice

    def _refusal_count(self) -> int:
        outputs = [(self.cluster.data_dir / f"broker-{each}.log").read_text() for each in self.cluster.ids]
        return sum(output.count("refuses a batch") for output in outputs)


class SmallDisk:
    """A file system of its own, of little room, for the data of one broker."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.is_mounted = (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(directory)],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )
        """False without the right to mount: then nothing fills up."""

    def unmount(self) -> None:
        if self.is_mounted:
            kept = self._directory.with_name(self._directory.name + ".kept")
            shutil.copytree(self._directory, kept)
            subprocess.run(["umount", "--lazy", str(self._directory)], check=True)
            shutil.copytree(kept, self._directory, dirs_exist_ok=True)
            shutil.rmtree(kept)


def fill(directory: Path) -> Path:
    """Leave no room on a disk; returns the file to remove when there shall be some."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    return filler


def run(
    directory: Path,
    seed: int,
    faults: Callable[[Scene], None],
    store: StoreControl | None = None,
    small_disks: Sequence[int] = (BROKERS,),
) -> Report:
    """Do `faults` to a cluster under load, heal it, and check what the clients did and saw.

    The brokers `small_disks` have their data on small file systems in memory, which can be filled.

    A failure names the seed and what was done, and keeps the data and the output of the brokers.
    """
    data = directory / "cluster"
    store = store or SqliteFile(data / "klamm-metadata.sqlite")
    disks = {broker_id: SmallDisk(data / f"broker-{broker_id}") for broker_id in small_disks}
    mounted = [broker_id for broker_id, disk in disks.items() if disk.is_mounted]
    try:
        with Cluster(BROKERS, as_processes=True, data_dir=data, coordination=store.url) as cluster:
            scene = Scene(cluster, seed, store, mounted)
            try:
                faults(scene)
                scene.under_way = "the end"
                report = scene.finish()
                assert not report.anomalies, "\n".join(report.anomalies)
            except BaseException as error:
                raise AssertionError(
                    f"SEED={seed} on {store.name}; the cluster met: {scene.story()}; "
                    f"data and output of the brokers: {data}\n{error}"
                ) from error
            finally:
                scene.close()
    finally:
        for disk in disks.values():
            disk.unmount()
    shutil.rmtree(data)
    return report
