"""The partitions of a broker: following the image, and log directories that fail or are missing."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from klamm.apis import k03_metadata
from klamm.cluster.controller import topics as controller
from klamm.model.errors import ErrorCode
from klamm.node.broker import STORE_FILE
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.k20_delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest
from klamm.protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.k75_describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from klamm.records.builder import build_batch, number_records
from klamm.replication import log_removal
from klamm.replication.long_lived import PARTITIONS_BETWEEN_FREEZES
from klamm.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
)
from klamm.testing.broker import Broker
from klamm.testing.wire import WireConnection
from tests.waiting import wait_until

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
            full_disk.setattr(os, "makedirs", no_room)
            topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
            answer = wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
            assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(wire, "t")[0] == ErrorCode.KAFKA_STORAGE_ERROR
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
        broker.node.cluster.view.subscribers.clear()  # nobody follows the image: as good as a crash
        broker.run(mark_deleted(broker))
    with broker:
        pass
    assert list(tmp_path.glob("t-0*")) == []


async def mark_deleted(broker: Broker) -> None:
    assert broker.node is not None
    cluster = broker.node.cluster
    await cluster._committer.commit(lambda image: controller.delete_topic(image, "t"))


def no_room_for(topic: str) -> Callable[..., None]:
    """In place of `os.makedirs`: the disk is full whenever the directory of a log of `topic` is made."""
    make_directories = os.makedirs

    def make_unless_full(path: str, *args: Any, **kwargs: Any) -> None:
        if f"/{topic}-" in str(path):
            no_room()
        make_directories(path, *args, **kwargs)

    return make_unless_full


def partition_metadata(wire: WireConnection, topic: str, partition: int = 0) -> tuple[int, int, list[int]]:
    """(error code, leader, offline replicas), which Metadata and DescribeTopicPartitions must agree on."""
    (described,) = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12).topics
    (again,) = wire.call(
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)], response_partition_limit=100)
    ).topics
    (everything,) = [
        each for each in wire.call(MetadataRequest(topics=None), 12).topics if each.name == topic
    ]
    answers = [answer.partitions[partition] for answer in (described, again, everything)]
    told = [(each.error_code, each.leader_id, each.offline_replicas) for each in answers]
    assert told[0] == told[1] == told[2]
    return told[0]


ONLINE = (ErrorCode.NONE, 1, [])
OFFLINE = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1])


def test_of_several_topics_each_stands_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(data_dir=tmp_path) as broker, WireConnection(broker.bootstrap) as wire:
        assert broker.node is not None
        partitions = broker.node.partitions
        names = ("a", "full", "z")
        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "makedirs", no_room_for("full"))
            topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
            answers = wire.call(CreateTopicsRequest(topics=topics, timeout_ms=1000)).topics
            assert {each.name: each.error_code for each in answers} == {
                "a": ErrorCode.NONE,
                "full": ErrorCode.KAFKA_STORAGE_ERROR,
                "z": ErrorCode.NONE,
            }
            assert [produce(wire, name)[0] for name in names] == [
                ErrorCode.NONE,
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.NONE,
            ]
            assert [partition_metadata(wire, name) for name in names] == [
                ONLINE,
                OFFLINE,
                ONLINE,
            ]
            assert not list(tmp_path.glob("full-*")), "an attempt leaves no files"
            # A change of the broker's defaults reaches all logs that are there.
            change = AlterableConfig(name="log.retention.ms", config_operation=0, value="123456")
            resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
            (altered,) = wire.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
            assert altered.error_code == ErrorCode.NONE
            assert {partitions.get(name, 0).log.config.retention_ms for name in "az"} == {123456}
            broker.run(partitions.make_unmade())
            assert partition_metadata(wire, "full") == OFFLINE
        broker.run(partitions.make_unmade())
        assert produce(wire, "full") == (ErrorCode.NONE, 0)
        assert partitions.get("full", 0).log.config.retention_ms == 123456
        assert partition_metadata(wire, "full") == ONLINE


def lose_snapshots(directory: Path) -> None:
    for path in directory.glob("*.snapshot"):
        path.unlink()


def lose_epochs(directory: Path) -> None:
    (directory / LEADER_EPOCH_FILE).unlink(missing_ok=True)


@pytest.mark.parametrize("lose", [lose_snapshots, lose_epochs])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_one_damaged_partition_is_offline_and_the_rest_serves(
    tmp_path: Path, lose: Callable[[Path], None], is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker({"log.segment.bytes": 1_048_576}, data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        for topic in ("bad", "good"):
            create(wire, topic)
        assert broker.node is not None
        for _ in range(3):
            assert produce(wire, "bad")[0] == ErrorCode.NONE
            log = broker.node.partitions.get("bad", 0).log
            with log._lock:
                log._roll(0)
    directory = tmp_path / "bad-0"
    sealed = min(directory.glob("*.log"))
    whole = sealed.read_bytes()
    sealed.write_bytes(whole[:8] + bytes(4) + whole[12:])
    lose(directory)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    for _ in range(2):  # what is offline stays so, and nothing of it is cut
        with broker, WireConnection(broker.bootstrap) as wire:
            assert produce(wire, "good")[0] == ErrorCode.NONE
            assert produce(wire, "bad")[0] == ErrorCode.KAFKA_STORAGE_ERROR
            assert partition_metadata(wire, "bad") == OFFLINE and partition_metadata(wire, "good") == ONLINE
            assert len(list(directory.glob("*.log"))) == 4
        assert "bad-0 is offline" in caplog.text and str(directory) in caplog.text
        assert "Restore the file" in caplog.text
    sealed.write_bytes(whole)
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "bad") == (ErrorCode.NONE, 3)
        assert partition_metadata(wire, "bad") == ONLINE


def test_groups_of_a_damaged_partition_have_no_coordinator(tmp_path: Path) -> None:
    broker = Broker({"offsets.topic.num.partitions": 1}, data_dir=tmp_path)
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
    with broker, WireConnection(broker.bootstrap) as wire:
        assert wire.call(find).coordinators[0].error_code == ErrorCode.NONE
    directory = tmp_path / "__consumer_offsets-0"
    lose_epochs(directory)
    (directory / "00000000000000000000.log").write_bytes(bytes(100))
    (directory / "00000000000000000001.log").write_bytes(b"")
    with broker, WireConnection(broker.bootstrap) as wire:
        assert wire.call(find).coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_topic_with_a_damaged_partition_can_be_deleted_and_made_anew(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "bad")
        produce(wire, "bad")
    lose_epochs(tmp_path / "bad-0")
    lose_snapshots(tmp_path / "bad-0")
    sealed = min((tmp_path / "bad-0").glob("*.log"))
    (tmp_path / "bad-0" / "00000000000000000001.log").write_bytes(b"")
    sealed.write_bytes(bytes(100))
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "bad")[0] == ErrorCode.KAFKA_STORAGE_ERROR
        (deleted,) = wire.call(DeleteTopicsRequest(topic_names=["bad"], timeout_ms=1000), 5).responses
        assert deleted.error_code == ErrorCode.NONE
        create(wire, "bad")
        assert produce(wire, "bad") == (ErrorCode.NONE, 0)
        wait_until(lambda: not list(tmp_path.glob("*-delete")), "the damaged log's files are removed")


def test_a_damaged_log_of_an_unknown_topic_is_kept_when_its_name_is_used_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All metadata is gone, and with it the topic: a client makes it anew before anyone restores the file."""
    caplog.set_level("INFO")
    broker = Broker(data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "bad")
        produce(wire, "bad")
    directory = tmp_path / "bad-0"
    lose_epochs(directory)
    (directory / "00000000000000000000.log").write_bytes(bytes(100))
    (directory / "00000000000000000001.log").write_bytes(b"")
    for lost in (tmp_path / STORE_FILE, tmp_path / "meta.properties", directory / PARTITION_METADATA_FILE):
        lost.unlink()
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "bad")
        assert produce(wire, "bad") == (ErrorCode.NONE, 0)
    (kept,) = tmp_path.glob("bad-0.*-stray")
    assert (kept / "00000000000000000000.log").read_bytes() == bytes(100)
    assert f"kept as {kept}" in caplog.text


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_logs_beyond_the_topics_partitions_are_kept_aside(
    tmp_path: Path, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata was restored from a backup that is older than the topic's newest partitions."""
    broker = Broker(data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "t")
    backup = (tmp_path / STORE_FILE).read_bytes()
    with broker, WireConnection(broker.bootstrap) as wire:
        more = CreatePartitionsTopic(name="t", count=3, assignments=None)
        (grown,) = wire.call(CreatePartitionsRequest(topics=[more], timeout_ms=1000)).results
        assert grown.error_code == ErrorCode.NONE
        assert produce(wire, "t", 2) == (ErrorCode.NONE, 0)
    sizes = records_in(tmp_path, "t-2")
    (tmp_path / STORE_FILE).write_bytes(backup)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    with broker, WireConnection(broker.bootstrap) as wire:
        assert produce(wire, "t", 0) == (ErrorCode.NONE, 0)
        assert produce(wire, "t", 2)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert records_in(tmp_path, "t-2.*-stray") == sizes
    assert "t-2" in caplog.text and "has only 1 partitions" in caplog.text


def test_a_deletion_does_not_wait_for_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing a large topic takes long; nobody's request waits for it."""
    may_remove = threading.Event()
    remove = log_removal.remove_tree

    def remove_slowly(directory: str) -> None:
        assert may_remove.wait(60)
        remove(directory)

    monkeypatch.setattr(log_removal, "remove_tree", remove_slowly)
    broker = Broker(data_dir=tmp_path)
    with broker, WireConnection(broker.bootstrap) as wire:
        create(wire, "large", 3)
        produce(wire, "large")
        (deleted,) = wire.call(DeleteTopicsRequest(topic_names=["large"], timeout_ms=1000), 5).responses
        assert deleted.error_code == ErrorCode.NONE
        assert len(list(tmp_path.glob("large-*-delete"))) == 3
        create(wire, "large")
        assert produce(wire, "large") == (ErrorCode.NONE, 0)
        may_remove.set()
        wait_until(lambda: not list(tmp_path.glob("*-delete")), "the deleted topic's files are removed")
        assert produce(wire, "large") == (ErrorCode.NONE, 1)


def test_files_of_deleted_topics_that_a_stop_left_are_removed_later(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path)
    (tmp_path / "t-0.0123456789abcdef-delete").mkdir()
    with broker:
        wait_until(lambda: not list(tmp_path.glob("*-delete")), "the directory is removed")


def test_what_is_known_of_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, WireConnection(broker.bootstrap) as wire:
        assert broker.node is not None
        create(wire, "gone")
        create(wire, "kept")
        for _ in range(3):  # the third goes through a shortcut, which knows the partition
            assert produce(wire, "gone")[0] == ErrorCode.NONE
        partition_metadata(wire, "gone")
        partition = weakref.ref(broker.node.partitions.get("gone", 0))
        wire.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
        partition_metadata(wire, "kept")
        answers = k03_metadata._ANSWERS[broker.node.cluster]
        assert set(answers._topics) == {"kept"}
        gc.collect()
        assert partition() is None


def test_partitions_are_frozen_while_they_are_made_and_freed_when_they_are_deleted() -> None:
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        assert broker.node is not None
        before = gc.get_freeze_count()
        create(wire, "many", 3 * PARTITIONS_BETWEEN_FREEZES)
        assert gc.get_freeze_count() - before > 20 * 3 * PARTITIONS_BETWEEN_FREEZES
        partitions = [weakref.ref(each) for each in broker.node.partitions if each.topic == "many"]
        gc.disable()
        try:
            wire.call(DeleteTopicsRequest(topic_names=["many"], timeout_ms=10_000), 5)
            wait_until(lambda: not any(each() for each in partitions), "partitions are freed")
        finally:
            gc.enable()
