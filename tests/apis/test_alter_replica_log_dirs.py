"""AlterReplicaLogDirs: a replica moves to another log directory while it is written to and read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import klamm
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from klamm.storage.log_dirs import LogDirs
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until


class Disks:
    """A broker with two log directories, and a topic of one partition in the first."""

    def __init__(self, path: Path) -> None:
        self.a, self.b = str(path / "a"), str(path / "b")
        self.broker = Broker({"log.dirs": f"{self.a},{self.b}"}).start()
        self.create_topic("events")

    def create_topic(self, name: str) -> None:
        with klamm.Admin(self.broker.bootstrap) as admin:
            admin.create_topic(name, partitions=1)

    def produce(self, count: int = 200, *, size: int = 2_000) -> None:
        with klamm.Producer(self.broker.bootstrap) as producer:
            for number in range(count):
                producer.send("events", b"%d" % number + b"." * size)

    def move(self, path: str, topic: str = "events", partition: int = 0) -> ErrorCode:
        topics = [AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
        with WireConnection(self.broker.bootstrap) as wire:
            ((result,),) = [each.partitions for each in wire.call(request).results]
            assert result.partition_index == partition
            return ErrorCode(result.error_code)

    def place(self, topic: str = "events") -> str:
        """The directory of the partition; of a copy, too, while there is one."""
        with klamm.Admin(self.broker.bootstrap) as admin:
            ((_, directories),) = admin.describe_log_dirs().items()
        return " ".join(
            directory.path + (f" future {size.offset_lag}" if size.future else "")
            for directory in directories
            for partition, size in directory.replicas.items()
            if partition.topic == topic
        )

    def hold_up_copies(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Copying waits for the event that is returned."""
        go_on, copy_some = threading.Event(), LogDirs.copy_some

        def wait_and_copy(log_dirs: LogDirs, topic_partition: klamm.TopicPartition) -> int | None:
            assert go_on.wait(60)
            return copy_some(log_dirs, topic_partition)

        monkeypatch.setattr(LogDirs, "copy_some", wait_and_copy)
        return go_on

    def values(self) -> list[int]:
        with klamm.Consumer(self.broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(klamm.TopicPartition("events", 0))
            end = consumer.end_offsets(klamm.TopicPartition("events", 0))
            found: list[int] = []
            while len(found) < sum(end.values()):
                found += [int(record.value.split(b".")[0]) for record in consumer.poll(1.0)]
            return found


@pytest.fixture
def disks(tmp_path: Path):
    disks = Disks(tmp_path)
    yield disks
    disks.broker.stop()


def test_a_replica_moves_and_is_served_meanwhile(disks, monkeypatch):
    disks.produce()
    go_on = disks.hold_up_copies(monkeypatch)
    assert disks.place() == disks.a
    assert disks.move(disks.b) == disks.move(disks.b) == ErrorCode.NONE
    assert disks.place() == f"{disks.a} {disks.b} future 200"
    disks.produce(50)
    assert len(disks.values()) == 250
    go_on.set()
    wait_until(lambda: disks.place() == disks.b, "the replica has moved")
    disks.produce(10)
    expected = [*range(200), *range(50), *range(10)]
    assert disks.values() == expected
    disks.broker.restart()
    assert disks.place() == disks.b and disks.values() == expected
    wait_until(lambda: not any("events" in name for name in os.listdir(disks.a)), "the old files are gone")


def test_a_move_gets_another_target_or_is_called_off(disks, monkeypatch):
    disks.produce(5)
    go_on = disks.hold_up_copies(monkeypatch)
    disks.move(disks.b)
    assert disks.move(disks.a) == ErrorCode.NONE
    go_on.set()
    assert disks.place() == disks.a
    wait_until(lambda: not any("events" in name for name in os.listdir(disks.b)), "the copy is gone")
    assert disks.values() == [*range(5)]


def test_a_replica_that_is_named_again_and_again_moves_once(disks, monkeypatch):
    disks.produce(5)
    made = []
    create_future = LogDirs.create_future

    def count_and_create(log_dirs: LogDirs, *arguments: object) -> None:
        made.append(arguments)
        create_future(log_dirs, *arguments)

    monkeypatch.setattr(LogDirs, "create_future", count_and_create)
    topics = [AlterReplicaLogDirTopic(name="events", partitions=[0, 0])]
    dirs = [AlterReplicaLogDir(path=path, topics=topics) for path in (disks.b, disks.a, disks.b)]
    with WireConnection(disks.broker.bootstrap) as wire:
        answer = wire.call(AlterReplicaLogDirsRequest(dirs=dirs))
    assert [len(topic.partitions) for topic in answer.results] == [1]
    assert len(made) == 1
    wait_until(lambda: disks.place() == disks.b, "the replica is where it was named last")


def test_refusals_and_a_replica_that_comes_later(disks):
    assert disks.move("/no/such") == ErrorCode.LOG_DIR_NOT_FOUND
    assert disks.move(disks.b, "nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert disks.move(disks.b, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    disks.create_topic("n" * 249)
    assert disks.move(disks.a, "n" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
    node = disks.broker.node
    assert node is not None

    async def fail() -> None:
        node.partitions.take_directory_offline(disks.b, OSError("pulled out"))

    disks.broker.run(fail())
    assert disks.move(disks.b) == ErrorCode.KAFKA_STORAGE_ERROR
    assert disks.place() == disks.a


def test_a_restart_goes_on_with_the_move(disks, monkeypatch):
    disks.produce()
    go_on = disks.hold_up_copies(monkeypatch)
    disks.move(disks.b)
    go_on.set()
    disks.broker.restart()
    wait_until(lambda: disks.place() == disks.b, "the replica has moved")
    assert disks.values() == [*range(200)]


def test_a_topic_is_deleted_while_it_moves(disks, monkeypatch):
    disks.produce()
    go_on = disks.hold_up_copies(monkeypatch)
    disks.move(disks.b)
    with klamm.Admin(disks.broker.bootstrap) as admin:
        admin.delete_topic("events")
    go_on.set()
    wait_until(
        lambda: not any("events" in name for path in (disks.a, disks.b) for name in os.listdir(path)),
        "log and copy are gone",
    )


def test_a_move_that_fails_leaves_the_replica_where_it_is(disks, monkeypatch):
    def fail(log_dirs: LogDirs, topic_partition: klamm.TopicPartition) -> int | None:
        raise OSError("no space")

    disks.produce(5)
    monkeypatch.setattr(LogDirs, "copy_some", fail)
    disks.move(disks.b)
    wait_until(lambda: disks.place() == disks.a, "the move is called off")
    assert disks.values() == [*range(5)]
