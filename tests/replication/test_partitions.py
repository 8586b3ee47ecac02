"""The partitions of a broker: following the image, and log directories that fail or are missing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from klamm.model.errors import ErrorCode
from klamm.node.broker import STORE_FILE
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest
from klamm.records.builder import build_batch, number_records
from klamm.storage.checkpoints import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE
from klamm.storage.segments.segment import Segment
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection

PRODUCE_VERSION = 9


def two_directories(tmp_path: Path) -> Broker:
    return Broker({"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"})


def create(wire: WireConnection, topic: str, partitions: int = 1) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)], timeout_ms=1000
    )
    assert wire.call(request).topics[0].error_code == ErrorCode.NONE


def produce(wire: WireConnection, topic: str, partition: int = 0) -> tuple[int, int]:
    """(error code, base offset)"""
    batch = build_batch(number_records([(b"key", b"value")], 1_700_000_000_000))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), PRODUCE_VERSION)
    response = answer.responses[0].partition_responses[0]
    return response.error_code, response.base_offset


def test_a_directory_that_failed_is_not_closed_cleanly(tmp_path: Path) -> None:
    broker = two_directories(tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 2)
        assert broker.node is not None
        log = broker.node.partitions.get("t", 1).log
        failed, healthy = log.directory.parent, broker.node.partitions.get("t", 0).log.directory.parent
        assert failed != healthy

        async def fail() -> None:
            assert broker.node is not None
            broker.node.partitions.take_directory_offline(str(failed), OSError(5, "fsync failed"))

        broker.run(fail())
        assert produce(wire, "t", 1)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(wire, "t", 0)[0] == ErrorCode.NONE
        described = {each.log_dir: each.error_code for each in wire.call(DescribeLogDirsRequest()).results}
        assert described == {str(failed): ErrorCode.KAFKA_STORAGE_ERROR, str(healthy): ErrorCode.NONE}
        create(wire, "later", 3)
        assert all(
            broker.node.partitions.get("later", index).log.directory.parent == healthy for index in range(3)
        )
    assert (healthy / CLEAN_SHUTDOWN_FILE).exists()
    assert not (failed / CLEAN_SHUTDOWN_FILE).exists()


def test_a_partition_does_not_begin_anew_while_its_directory_is_away(tmp_path: Path) -> None:
    broker = two_directories(tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t", 2)
        assert broker.node is not None
        away = broker.node.partitions.get("t", 1).log.directory.parent
        for partition in (0, 1):
            assert produce(wire, "t", partition) == (ErrorCode.NONE, 0)
    checkpoint = away / RECOVERY_POINT_FILE
    checkpoint.rename(away / "kept")
    checkpoint.mkdir()  # reading it fails as a broken disk would
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "t", 0) == (ErrorCode.NONE, 1)
        assert produce(wire, "t", 1)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        create(wire, "other", 2)
    checkpoint.rmdir()
    (away / "kept").rename(checkpoint)
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "t", 1) == (ErrorCode.NONE, 1)


def test_a_topic_made_while_there_is_no_room_works_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=tmp_path) as broker, WireConnection(broker.bootstrap) as wire:
        with monkeypatch.context() as full_disk:
            full_disk.setattr(Segment, "create", no_room)
            topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
            answer = wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
            assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(wire, "t")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.node is not None
        broker.run(broker.node.partitions.make_unmade())
        assert [produce(wire, "t", partition) for partition in range(2)] == [(ErrorCode.NONE, 0)] * 2


def no_room(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def records_in(data_dir: Path, pattern: str) -> list[int]:
    return [path.stat().st_size for path in sorted(data_dir.glob(f"{pattern}/*.log"))]


def test_logs_that_no_topic_has_are_kept(tmp_path: Path) -> None:
    """The metadata may be older than the logs: somebody restored a backup of it."""
    broker = Broker(data_dir=tmp_path)
    with broker:
        pass
    backup = (tmp_path / STORE_FILE).read_bytes()
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t")
        assert produce(wire, "t") == (ErrorCode.NONE, 0)
    sizes = records_in(tmp_path, "t-0")
    (tmp_path / STORE_FILE).write_bytes(backup)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t")
        assert produce(wire, "t") == (ErrorCode.NONE, 0)
    assert records_in(tmp_path, "t-0.*-stray") == sizes
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "t") == (ErrorCode.NONE, 1)


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t")
        produce(wire, "t")
    with broker, WireConnection(broker.bootstrap) as wire:
        assert broker.node is not None
        broker.node.cluster._committer.subscribers.clear()  # nobody follows the image: as good as a crash
        broker.run(broker.node.cluster._committer.in_turn(lambda: mark_deleted(broker)))
    with broker:
        pass
    assert list(tmp_path.glob("t-0*")) == []


async def mark_deleted(broker: Broker) -> None:
    assert broker.node is not None
    cluster = broker.node.cluster
    change = cluster._controller.delete_topic(cluster.image, "t", is_marked=False)
    await cluster._committer.commit([change])
