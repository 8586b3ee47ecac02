"""A disk that fills up: a clear error to producers, reads go on, and writes resume when there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceResponse
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.testing.wire import WireConnection
from tests.abuse.broker_process import BrokerProcess
from tests.abuse.calls import batch_of, create_topic, produce, read_all, values_of
from tests.conftest import cannot_run
from tests.faults.checks import committed_offset, make_coordinator
from tests.faults.load import Committer, Partition
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

DISK_BYTES = 24 * 1024 * 1024
VALUE_BYTES = 300_000
TOPIC_RESOURCE = 2
SET = 0
SMALL_SEGMENTS = {"segment.bytes": 1_048_576, "file.delete.delay.ms": 0}


class SmallDisk:
    """A file system of its own, with a file that keeps some of the room for later."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            cannot_run(
                PeerMissing(f"mounting a small tmpfs, which needs root: {done.stderr.decode().strip()}")
            )
        self._reserve = directory / "reserve"
        self._reserve.write_bytes(bytes(8 * 1024 * 1024))

    def make_room(self) -> None:
        self._reserve.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.directory)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.unmount()


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"log.retention.check.interval.ms": 200, "log.flush.offset.checkpoint.interval.ms": 200}
    with BrokerProcess(disk.directory / "data", tmp_path / "broker.log", settings) as process:
        yield process


class Writer:
    """Fills a topic and remembers what was acknowledged."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._number = 0
        self.acknowledged: list[bytes] = []

    def write(self, connection: WireConnection) -> PartitionProduceResponse:
        value = b"%d " % self._number
        self._number += 1
        answer = produce(connection, self._topic, batch_of(value.ljust(VALUE_BYTES, b".")))
        if answer.error_code == ErrorCode.NONE:
            assert answer.base_offset == len(self.acknowledged)
            self.acknowledged.append(value)
        return answer

    def fill(self, connection: WireConnection) -> PartitionProduceResponse:
        """Write until it is refused; returns the refusal."""
        for _ in range(DISK_BYTES // VALUE_BYTES + 1):
            answer = self.write(connection)
            if answer.error_code != ErrorCode.NONE:
                return answer
        raise AssertionError("the disk does not fill up")

    def check(self, connection: WireConnection, offset: int = 0) -> None:
        read = [
            value.rstrip(b".")
            for value in values_of(read_all(connection, self._topic, offset=offset))
            if value
        ]
        assert read == self.acknowledged[offset:]


def test_writes_fail_clearly_and_resume(broker: BrokerProcess, disk: SmallDisk) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "filling", configs=SMALL_SEGMENTS)
        make_coordinator(connection, "group")
        committer = Committer(broker.bootstrap, "committer", "group", Partition("filling", 0))
        committer.work_once(connection)
        writer = Writer("filling")
        for _ in range(3):
            refusal = writer.fill(connection)
            assert refusal.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in (refusal.error_message or "")
        # Everything else goes on: reads, metadata, offsets, other connections.
        writer.check(connection)
        with WireConnection(broker.bootstrap) as other:
            writer.check(other)
            assert other.call(MetadataRequest(topics=None)).topics
            assert committed_offset(other, "group", Partition("filling", 0)) == 0
        disk.make_room()
        for _ in range(5):
            assert writer.write(connection).error_code == ErrorCode.NONE
        committer.work_once(connection)
        writer.check(connection)
    broker.check_log()
    broker.kill()
    broker.start()
    with WireConnection(broker.bootstrap) as connection:
        writer.check(connection)
        assert committed_offset(connection, "group", Partition("filling", 0)) == 1


def test_deleting_records_makes_room(broker: BrokerProcess) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "filling", configs=SMALL_SEGMENTS)
        writer = Writer("filling")
        assert writer.fill(connection).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        keep_from = len(writer.acknowledged) - 3
        asked = DeleteRecordsPartition(partition_index=0, offset=keep_from)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="filling", partitions=[asked])], timeout_ms=10_000
        )
        result = connection.call(request).topics[0].partitions[0]
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, keep_from)
        wait_until(lambda: writer.write(connection).error_code == ErrorCode.NONE, "writes resume")
        writer.check(connection, offset=keep_from)


def test_retention_makes_room(broker: BrokerProcess) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "filling", configs=SMALL_SEGMENTS)
        writer = Writer("filling")
        assert writer.fill(connection).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        change = AlterableConfig(name="retention.bytes", config_operation=SET, value="3000000")
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="filling", configs=[change]
        )
        (result,) = connection.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
        assert result.error_code == ErrorCode.NONE
        wait_until(lambda: writer.write(connection).error_code == ErrorCode.NONE, "writes resume")
        writer.check(connection, offset=len(writer.acknowledged) - 5)


def test_without_room_nothing_is_made_and_everything_is_told(broker: BrokerProcess, disk: SmallDisk) -> None:
    """Topics, commits and group state need room, too."""
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "filling", configs=SMALL_SEGMENTS)
        make_coordinator(connection, "group")
        writer = Writer("filling")
        writer.fill(connection)
        (disk.directory / "rest").write_bytes(b"")
        with (disk.directory / "rest").open("ab", buffering=0) as rest, pytest.raises(OSError):
            while True:
                rest.write(bytes(4096))
        topic = CreatableTopic(name="no-room", num_partitions=3, replication_factor=1)
        created = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics[0]
        assert created.error_code != ErrorCode.NONE
        committer = Committer(broker.bootstrap, "committer", "group", Partition("filling", 0))
        committer.work_once(connection)
        assert committer.acknowledged == -1
        writer.check(connection)
        disk.make_room()
        create_topic(connection, "no-room", partitions=3)
        assert writer.write(connection).error_code == ErrorCode.NONE
        committer.work_once(connection)
        assert committer.acknowledged == 1
    broker.check_log()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_starting_on_a_full_disk(broker: BrokerProcess, disk: SmallDisk, ending: str) -> None:
    with WireConnection(broker.bootstrap) as connection:
        create_topic(connection, "filling", configs=SMALL_SEGMENTS)
        writer = Writer("filling")
        writer.fill(connection)
    getattr(broker, ending)()
    broker.start()
    with WireConnection(broker.bootstrap) as connection:
        writer.check(connection)
        disk.make_room()
        assert writer.write(connection).error_code == ErrorCode.NONE
        writer.check(connection)
